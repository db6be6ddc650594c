"""`stoker pack --slurm N` with stand-ins for sbatch and srun that run what they are given."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from command import Command, Done
from stoker.data.index import Index
from stoker.data.packing.journal import NAME as JOURNAL
from stoker.data.packing.journal import parse_share
from stoker.data.packing.stripe import stripe
from stoker.data.verify import verify
from stoker.errors import UsageError

ROOT = Path(__file__).parent.parent
PUHTI = ("--cluster", "puhti", "--account", "project_2001234")
# Runs each element of an array at once, and what depends on it if all went well.
SBATCH = """#!/bin/bash
echo "$@" >> "$CALLS"
script=${@: -1}
count=$(sed -n 's/^#SBATCH --array=1-//p' "$script")
[[ $FAIL == "$(basename "$script")" ]] && { echo 'sbatch: error: Invalid account' >&2; exit 1; }
number=$(($(wc -l < "$CALLS") + 1000))
for each in $(seq "${count:-1}"); do
    [[ $LOST == "$each" && $count ]] && continue
    SLURM_ARRAY_TASK_ID=$each SLURM_CPUS_PER_TASK=4 bash "$script" >> "$CALLS.log" 2>&1 || true
done
echo $number
"""
SRUN = '#!/bin/bash\nwhile [[ $1 == -* ]]; do shift; done\nexec "$@"\n'

Run = Callable[..., Done]


@pytest.fixture
def pack(tmp_path: Path, command: Command) -> Run:
    """Run `stoker pack` in a folder with a source of 20 samples."""
    for name, text in (("sbatch", SBATCH), ("srun", SRUN)):
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(text)
        program.chmod(0o755)
    (tmp_path / "src").mkdir()
    for each in range(20):
        (tmp_path / f"src/{each:02d}.txt").write_bytes(b"%d" % each * 100 * each)

    def run(*words: str, **environ: str) -> Done:
        path = f"{tmp_path / 'bin'}:{Path(sys.executable).parent}:/usr/bin:/bin"
        env = {"PATH": path, "HOME": str(tmp_path), "CALLS": str(tmp_path / "calls"), **environ}
        return command.run("pack", *words, cwd=tmp_path, env=env)

    return run


def test_an_array_packs_and_a_last_job_joins(pack: Run, tmp_path: Path) -> None:
    done = pack("src", "out", "--slurm", "3", "--shard-size", "4K", "--shuffle", "1", *PUHTI)
    assert done.stdout == "1001 1002\n", done.stderr
    assert "3 shares; 1002 joins them" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("next: stoker jobs")
    assert list(verify(tmp_path / "out")) == []
    index = Index.open(tmp_path / "out/index.stoker")
    assert sorted(index.key(at) for at in range(20)) == [f"{each:02d}" for each in range(20)]
    assert not (tmp_path / "out" / JOURNAL).exists()


def test_nothing_is_joined_while_a_share_is_missing(pack: Run, tmp_path: Path) -> None:
    done = pack("src", "out", "--slurm", "3", "--json", *PUHTI, LOST="2")
    assert json.loads(done.stdout) == {"format": 1, "out": "out", "array": "1001", "join": "1002"}
    assert not (tmp_path / "out/index.stoker").exists()
    script = (tmp_path / "out" / JOURNAL / "join.sh").read_text()
    assert "#SBATCH --dependency=afterok:1001\n" in script
    done = pack("out", "--join")
    assert (done.returncode, "missing: 2" in done.stderr) == (1, True), done.stderr
    assert pack("src", "out", "--share", "2/3", "--workers", "1").returncode == 0
    done = pack("out", "--join")
    assert done.stdout.startswith("packed 20 samples into 3 shards"), done.stderr
    assert list(verify(tmp_path / "out")) == []


def test_what_the_jobs_ask_for(pack: Run, tmp_path: Path) -> None:
    words = ("--time", "2h", "--sbatch=--qos=low", "--partition", "small")
    pack("src", "out", "--slurm", "2", *words, *PUHTI, LOST="1")
    script = (tmp_path / "out" / JOURNAL / "pack.sh").read_text()
    for line in (
        "--array=1-2", "--time=02:00:00", "--qos=low", "--partition=small", "--mem=2G",
        "--account=project_2001234", f"--output={tmp_path}/out/{JOURNAL}/%a.log",
    ):  # fmt: skip
        assert f"#SBATCH {line}\n" in script
    assert "gpu" not in script
    assert subprocess.run(["bash", "-n", "/dev/stdin"], input=script.encode(), check=True)


def test_a_refusal_of_slurm_is_told_and_the_same_command_goes_on(pack: Run, tmp_path: Path) -> None:
    done = pack("src", "out", "--slurm", "2", *PUHTI, FAIL="pack.sh")
    assert (done.returncode, "Invalid account" in done.stderr) == (1, True)
    assert pack("src", "out", "--slurm", "2", *PUHTI).returncode == 0
    assert list(verify(tmp_path / "out")) == []


def test_what_is_missing_is_asked_for(pack: Run) -> None:
    assert "no account was given" in pack("src", "a", "--slurm", "2", "--cluster", "puhti").stderr
    assert (
        "`nowhere` is not known" in pack("src", "b", "--slurm", "2", "--cluster", "nowhere").stderr
    )
    assert "missing: OUT" in pack("src").stderr
    assert "no shares to join" in pack("src", "--join").stderr


@given(st.text(max_size=8))
def test_a_share_is_a_number_of_a_number(text: str) -> None:
    try:
        share = parse_share(text, {})
    except UsageError:
        return
    assert 1 <= share.number <= share.of


def test_the_target_is_striped_on_lustre(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lfs").write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/said\n')
    (tmp_path / "lfs").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert not stripe(tmp_path)
    monkeypatch.setattr("stoker.data.packing.stripe.file_system", lambda _: "lustre")
    assert stripe(tmp_path)
    assert (tmp_path / "said").read_text() == f"setstripe -E 1G -c 1 -E -1 -c 4 {tmp_path}\n"
    (tmp_path / "lfs").write_text("#!/bin/sh\nexit 1\n")
    assert not stripe(tmp_path)
