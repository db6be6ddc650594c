"""What a run has cost, and what part of it bought nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stoker.advise.spent import Spent, find_spent
from stoker.report.efficiency import find_efficiency, render_efficiency
from stoker.watch.summary import read_summary
from test_report_run import CPU, SECONDS, add_machine, add_rank, gpu, new_folder


def spent_of(path: Path, readings: dict[str, float], num_gpus: int, **run: Any) -> Spent | None:
    folder = new_folder(path / "run", **run)
    add_machine(folder, readings, num_gpus=num_gpus)
    return find_spent(read_summary(folder))


def test_without_a_site_gpus_are_counted_in_hours(tmp_path: Path) -> None:
    spent = spent_of(tmp_path, {**CPU, **gpu(0, duty=40), **gpu(1, duty=0)}, 2)
    assert spent is not None
    assert spent.unit == "GPU-hours"
    assert spent.total == pytest.approx(2 * SECONDS / 3600)
    assert spent.wasted == pytest.approx(0.8 * spent.total)


def test_without_a_gpu_cores_are_counted(tmp_path: Path) -> None:
    spent = spent_of(tmp_path, CPU, 0)
    assert spent is not None
    assert spent.unit == "core-hours"
    assert spent.total == pytest.approx(16 * SECONDS / 3600)
    assert spent.wasted == pytest.approx(spent.total * (1 - 3.2 / 16))


JOB = {
    "SLURM_CLUSTER_NAME": "puhti",
    "SLURM_JOB_PARTITION": "gpu",
    "SLURM_MEM_PER_NODE": str(64 * 1024),
}


def test_at_a_site_that_is_known_it_is_the_sites_unit(tmp_path: Path) -> None:
    spent = spent_of(tmp_path, {**CPU, **gpu(0, duty=50)}, 1, environment=JOB)
    assert spent is not None
    # Puhti bills 60 for a V100, 1 for a core and 0.1 for a GiB, each for an hour.
    assert spent.unit == "GPU BU"
    assert spent.total == pytest.approx((60 + 16 + 6.4) * SECONDS / 3600)
    assert spent.wasted == pytest.approx(spent.total / 2)


@pytest.mark.parametrize(
    "told",
    [
        {**JOB, "SLURM_CLUSTER_NAME": "../puhti"},
        {**JOB, "SLURM_MEM_PER_NODE": "much"},
        {**JOB, "SLURM_CLUSTER_NAME": None},
        {},
        "no dictionary",
    ],
)
def test_what_is_not_known_of_the_job_is_not_guessed(tmp_path: Path, told: object) -> None:
    spent = spent_of(tmp_path, {**CPU, **gpu(0)}, 1, environment=told)
    assert spent is not None
    assert spent.unit == "GPU-hours"


def test_a_run_that_took_no_time_or_read_nothing_has_no_cost(tmp_path: Path) -> None:
    folder = new_folder(tmp_path / "run")
    assert find_spent(read_summary(folder)) is None


# -- what was used of what was reserved --------------------------------------------------


def test_efficiency_is_said_as_seff_says_it(tmp_path: Path) -> None:
    folder = new_folder(tmp_path / "run")
    add_machine(folder, {**CPU, **gpu(0, duty=40)}, num_gpus=1)
    add_rank(folder, {"forward": 10})
    summary = read_summary(folder)
    used = find_efficiency(summary)
    assert used.cpu_share == pytest.approx(0.2)
    assert (used.gpus_used, used.gpus_held) == (1, 1)
    text = render_efficiency(used, find_spent(summary))
    assert text[0] == "cores    3.2 of 16 busy: CPU efficiency 20 %"
    # Nobody set a limit: what the machine has is not what was asked for.
    assert text[1] == "memory   6.6 of 503 GiB at most"
    assert text[2].startswith("GPUs     1 of 1 used, load 40 %")


def test_with_a_limit_memory_is_what_the_control_group_holds(tmp_path: Path) -> None:
    folder = new_folder(tmp_path / "run")
    add_machine(folder, {**CPU, "mem.cgroup_gib": 10.0})
    machine = folder.machine("node1")
    folder.write(machine, {**folder.read(machine), "memory_limit_gib": 48.0})
    used = find_efficiency(read_summary(folder))
    assert used.memory_gib == pytest.approx(12.0)
    assert used.memory_share == pytest.approx(0.25)
    assert "memory efficiency 25 %" in "\n".join(render_efficiency(used, None))


def test_what_is_unknown_is_not_told(tmp_path: Path) -> None:
    assert not render_efficiency(find_efficiency(read_summary(new_folder(tmp_path / "run"))), None)
