"""Every cluster, framework and size: what the planner accepts, every tool accepts."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from stoker.check.lint import Settings, check_script
from stoker.cluster.load import load_cluster, names
from stoker.errors import SpecError
from stoker.plan.make import make_plan
from stoker.plan.script import render_script
from stoker.plan.spec import FRAMEWORKS, Setup, Spec, Staging, Survival
from test_golden_scripts import ACCOUNTS, assert_shellcheck

EXTRAS = {
    "bare": {},
    "surviving": {
        "staging": Staging(results="/scratch/it's here"),
        "survival": Survival(requeue=True),
    },
    "own environment": {"setup": Setup(container="/images/my torch.sif", env=(("A", "$b"),))},
    "virtual environment": {"setup": Setup(venv="/envs/my env")},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", names())
def test_every_plan_of_a_cluster_is_sound(name: str, tmp_path: Path) -> None:
    cluster = load_cluster(name)
    room = next((gpu.per_node for gpu in cluster.gpu.values() if gpu.per_node), None) or 1
    files = []
    for framework in FRAMEWORKS:
        for gpus in sorted({1, room, 2 * room} if cluster.gpu else {0}):
            for title, extra in EXTRAS.items():
                spec = Spec(
                    ("train.py",), gpus=gpus, time_s=7200, framework=framework,
                    account=ACCOUNTS.get(name), **extra,  # type: ignore[arg-type]
                )  # fmt: skip
                try:
                    script = render_script(make_plan(spec, cluster, tmp_path))
                except SpecError:
                    continue
                if cluster.scheduler == "slurm":
                    for version in ((20, 11), (23, 2), (25, 11)):
                        settings = Settings(cluster=cluster, slurm_version=version)
                        assert check_script(script, settings).findings == (), script
                path = tmp_path / f"{framework}-{gpus}-{title}.sh"
                path.write_text(script)
                files.append(str(path))
    assert len(files) > 3
    for file in files:
        subprocess.run(["bash", "-n", file], check=True)
    assert_shellcheck(files)
