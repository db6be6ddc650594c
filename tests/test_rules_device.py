"""Rules about GPUs, on runs modelled on what an H200 told: the cause is named, its neighbours are not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stoker.advise.finding import Finding
from stoker.advise.findings import find
from stoker.advise.rules import device, gpus, ranks
from stoker.watch.series import Row, Stat, merged
from stoker.watch.summary import Line, Machine, Rank, Summary, make_split

ALL = (*device.RULES, *gpus.RULES, *ranks.RULES)
SECONDS, START_S = 60, 6

# -- runs to look at -----------------------------------------------------------------

# By the H200's own clock, in milliseconds.
BUSY = {"data": 0.2, "h2d": 0.8, "forward": 21.0, "backward": 40.0, "optimizer": 2.0, "other": 0.5}
LAUNCHING = {"data": 0.1, "h2d": 0.1, "forward": 0.6, "backward": 0.9, "optimizer": 0.3, "other": 0.1}  # fmt: skip
# What a GPU tells that is well used by a model in bfloat16.
WELL = {"duty_pct": 98.0, "sm_pct": 85.0, "tensor_pct": 40.0, "fp32_pct": 6.0, "dram_pct": 45.0,
        "mem_gib": 110.0, "power_w": 560.0, "temp_c": 58.0, "throttled": 0.0}  # fmt: skip
MODEL = {"dtype": "float32", "device": "cuda:0", "parameters": 90_000_000}


def one(value: float) -> Stat:
    return Stat(1, value, 0.0, value)


def make_rank(
    phases_ms: Mapping[str, float],
    *,
    rank: int = 0,
    host: str = "node1",
    host_ms: Mapping[str, float] | None = None,
    lines: tuple[Line, ...] = (),
    model: Mapping[str, Any] = MODEL,
    is_on_device: bool = True,
    more: Mapping[str, float] | None = None,
    **facts: Any,
) -> Rank:
    """A rank whose steps are all alike, from the sixth second on."""
    step = sum(phases_ms.values())
    steady = {"step": step, **phases_ms, **(more or {})}
    if is_on_device:
        told = host_ms or phases_ms
        steady |= {"device_step": step, "host.step": step}
        steady |= {f"host.{name}": ms for name, ms in told.items()}
    count = round(1000 / step)
    stats = {
        f"steady.{name}": Stat(count, ms / 1000, 0.0, ms / 1000) for name, ms in steady.items()
    }
    begun = {"startup.step": one(4.2), "warmup.step": one(1.5)}
    rows = [
        Row(0, START_S, begun),
        *(Row(at, at + 1, stats) for at in range(START_S, SECONDS)),
    ]
    whole = merged(rows)
    assert whole is not None
    split = make_split(whole.stats, "steady")
    told_facts = {
        "model": model,
        **({"device": {"uuid": "GPU-0"}} if is_on_device else {}),
        **facts,
    }
    steps = 3 + (SECONDS - START_S) * count
    return Rank(
        label=f"{rank}-{host}",
        rank=rank,
        host=host,
        pid=100 + rank,
        steps=steps,
        epochs=1,
        startup_s=4.2,
        steady=split,
        first=None,
        warmup=None,
        evaluation=None,
        facts=told_facts,
        notes=(),
        cost_s=0.1,
        world=1,
        lines=lines,
        rows=tuple(rows),
    )


def make_machine(
    *readings: Mapping[str, float], host: str = "node1", seconds: int = SECONDS
) -> Machine:
    """A machine whose GPUs are idle until training begins."""
    rows = []
    for at in range(seconds):
        stats = {"cpu.cores": one(2.0)}
        for number, told in enumerate(readings):
            for name, value in told.items():
                is_kept = name in ("mem_gib", "mine_gib", "temp_c")
                shown = value if at >= START_S or is_kept else 0.0
                stats[f"gpu.{number}.{name}"] = one(shown)
        rows.append(Row(at, at + 1, stats))
    whole = merged(rows)
    assert whole is not None
    facts = {
        "cores_allowed": 16,
        "gpus": [
            {"index": i, "uuid": f"GPU-{i}", "memory_gib": 140.4, "power_limit_w": 700.0,
             "max_clock_mhz": 1980.0}
            for i in range(len(readings))
        ],
    }  # fmt: skip
    return Machine(host, facts, whole.stats, tuple(rows))


def make_run(
    ranks: Sequence[Rank],
    machines: Sequence[Machine],
    wall_s: float = SECONDS,
    job: str | None = None,
) -> Summary:
    environment = {"SLURM_JOB_ID": job} if job else {}
    run = {"environment": environment}
    return Summary(Path("run"), run, "ended", wall_s, tuple(ranks), tuple(machines))


def on_gpu(phases_ms: Mapping[str, float], readings: Mapping[str, float], **more: Any) -> Summary:
    return make_run([make_rank(phases_ms, **more)], [make_machine({**readings, "mine_gib": 1.0})])


def keys(summary: Summary, least: str = "advice") -> list[str]:
    levels = ("problem", "advice")[: 1 if least == "problem" else 2]
    return [each.key for each in find(summary, ALL) if each.level in levels]


def only(summary: Summary) -> Finding:
    found = find(summary, ALL)
    assert len(found) == 1, found
    return found[0]


# -- launches ------------------------------------------------------------------------

# What the real H200 said of a small network: 6 % load, 1.3 % SM.
TINY = {**WELL, "duty_pct": 30.0, "sm_pct": 4.0, "tensor_pct": 0.1, "fp32_pct": 0.4,
        "dram_pct": 0.5, "mem_gib": 0.8, "power_w": 120.0}  # fmt: skip


def test_a_gpu_that_waits_for_launches_is_told_with_what_graphs_bring() -> None:
    found = only(on_gpu(LAUNCHING, TINY))
    assert (found.key, found.level, found.safety) == ("launch-bound", "problem", "B")
    assert "make_graphed_callables" in found.fix
    assert found.gain is not None
    # 1.8 of 2.1 ms are the model's and the optimizer's, and 30 % of the time a kernel runs.
    idle = 1.8 / 2.1 - 0.30
    assert found.figures["idle_share"] == pytest.approx(idle)
    part = 54 * 476 * 0.0021 / 60
    assert found.gain.ceiling == pytest.approx(1 / (1 - part * idle), rel=0.03)
    assert found.gain.low < found.gain.high < found.gain.ceiling


def test_a_compiled_model_is_told_of_the_compilers_graphs_only() -> None:
    found = only(on_gpu(LAUNCHING, TINY, model={**MODEL, "is_compiled": True}))
    assert "make_graphed_callables" not in found.fix
    assert "reduce-overhead" in found.fix


@pytest.mark.parametrize(
    ("phases", "readings", "host"),
    [
        (LAUNCHING, {**TINY, "duty_pct": 70.0, "sm_pct": 50.0}, None),  # kernels do run
        ({**LAUNCHING, "data": 4.0}, {**TINY, "duty_pct": 10.0}, None),  # the loader is the cause
        (LAUNCHING, TINY, {"forward": 0.1, "backward": 0.1, "other": 1.9}),  # the host is far ahead
        ({"graph": 1.9, "data": 0.1}, TINY, None),  # a graph already
    ],
)
def test_other_causes_are_no_launches(
    phases: Mapping[str, float], readings: Mapping[str, float], host: Mapping[str, float] | None
) -> None:
    assert "launch-bound" not in keys(on_gpu(phases, readings, host_ms=host))


# -- lines that wait -----------------------------------------------------------------

HALF = {**TINY, "duty_pct": 50.0, "sm_pct": 35.0, "tensor_pct": 20.0}


def waiting_line(share: float, line: int = 31) -> Line:
    own_s = share * (SECONDS - START_S)
    return Line("/home/me/train.py", "step", line, own_s, own_s, "forward", 1.0, True)


def test_a_line_that_waits_for_the_gpu_is_named_with_its_place() -> None:
    lines = (waiting_line(0.45), waiting_line(0.01, 40))
    found = only(on_gpu(LAUNCHING, HALF, lines=lines))
    assert (found.key, found.level, found.safety) == ("sync-lines", "problem", "A")
    assert found.what == "The host waits for values of the GPU at train.py:31."
    assert found.gain is not None
    # The GPU works for 0.55 of the step, with its copy, and the host for 0.54: at best at the
    # same time, in 54 of 60 s.
    saved = 1 - (0.5 + 0.1 / 2.1)
    assert found.gain.high == pytest.approx(1 / (1 - 0.9 * saved), rel=0.03)
    assert found.gain.low < 0.9 * found.gain.high


def test_two_lines_that_wait_are_both_named() -> None:
    found = only(on_gpu(LAUNCHING, HALF, lines=(waiting_line(0.2), waiting_line(0.25, 40))))
    assert "train.py:40 and train.py:31" in found.what


def test_waiting_costs_nothing_while_the_gpu_is_busy_anyway() -> None:
    assert keys(on_gpu(BUSY, WELL, lines=(waiting_line(0.9),))) == []


def test_a_rare_wait_is_not_the_cause_of_slow_launches() -> None:
    assert keys(on_gpu(LAUNCHING, TINY, lines=(waiting_line(0.03),))) == ["launch-bound"]


# -- number formats ------------------------------------------------------------------

PLAIN = {**WELL, "tensor_pct": 0.0, "fp32_pct": 80.0, "sm_pct": 97.0, "dram_pct": 9.0}


def test_float32_beside_idle_tensor_cores_is_told() -> None:
    found = only(on_gpu(BUSY, PLAIN))
    assert (found.key, found.level, found.confidence) == ("tensor-cores-idle", "problem", "high")
    assert "set_float32_matmul_precision" in found.fix
    assert found.gain is not None
    assert 1.5 < found.gain.low < found.gain.high < 7


def test_without_the_float32_counter_it_is_advice() -> None:
    readings = {name: value for name, value in PLAIN.items() if name != "fp32_pct"}
    found = only(on_gpu(BUSY, readings))
    assert (found.key, found.level, found.confidence) == ("tensor-cores-idle", "advice", "medium")


@pytest.mark.parametrize(
    ("readings", "model"),
    [
        (PLAIN, {**MODEL, "matmul_precision": "high"}),
        (PLAIN, {**MODEL, "dtype": "bfloat16"}),
        ({**PLAIN, "tensor_pct": 12.0}, MODEL),  # autocast, or convolutions in TF32
        ({**PLAIN, "fp32_pct": 8.0, "dram_pct": 80.0}, MODEL),  # adding and copying
    ],
)
def test_tensor_cores_that_work_or_have_nothing_to_do_are_left_alone(
    readings: Mapping[str, float], model: Mapping[str, Any]
) -> None:
    assert keys(on_gpu(BUSY, readings, model=model)) == []


# -- batches -------------------------------------------------------------------------

HOLLOW = {**WELL, "sm_pct": 20.0, "tensor_pct": 6.0, "mem_gib": 12.0}


def test_a_gpu_that_is_filled_a_little_is_advised_a_larger_batch() -> None:
    found = only(on_gpu(BUSY, HOLLOW))
    assert (found.key, found.level, found.safety) == ("batch-too-small", "advice", "C")
    assert "12 of 140 GiB" in found.why


@pytest.mark.parametrize(
    "change", [{"mem_gib": 100.0}, {"sm_pct": 60.0}, {"duty_pct": 40.0, "sm_pct": 30.0}]
)
def test_without_room_or_need_no_larger_batch_is_advised(change: Mapping[str, float]) -> None:
    assert "batch-too-small" not in keys(on_gpu(BUSY, {**HOLLOW, **change}))


# -- other code ----------------------------------------------------------------------

LOGGING = {**BUSY, "other": 60.0}
SLOW_LINE = Line("/home/me/train.py", "log", 44, 25.0, 25.0, "other")


def test_code_for_which_the_gpu_waits_is_named() -> None:
    found = only(on_gpu(LOGGING, {**WELL, "duty_pct": 50.0}, lines=(SLOW_LINE,)))
    assert (found.key, found.level) == ("host-code", "problem")
    assert "train.py:44" in found.what
    assert "train.py:44" in found.fix


def test_other_code_that_computes_on_the_gpu_is_no_wait() -> None:
    assert keys(on_gpu(LOGGING, WELL)) == []


def test_on_a_cpu_other_code_may_be_the_work_itself() -> None:
    rank = make_rank(LOGGING, is_on_device=False, model={**MODEL, "device": "cpu"})
    found = only(make_run([rank], [make_machine()]))
    assert (found.key, found.level, found.confidence) == ("host-code", "advice", "medium")


# -- GPUs that are held --------------------------------------------------------------

IDLE = {"duty_pct": 0.0, "mem_gib": 0.5, "power_w": 76.0, "temp_c": 30.0}


def test_of_two_reserved_gpus_one_is_never_used() -> None:
    machine = make_machine({**WELL, "mine_gib": 60.0}, IDLE)
    found = only(make_run([make_rank(BUSY)], [machine], job="4211"))
    assert (found.key, found.level) == ("gpus-unused", "problem")
    assert found.waste is not None
    assert (found.waste.what, found.waste.share) == ("1 of 2 GPUs", 0.5)
    assert "`#SBATCH --gpus-per-node=1`" in found.fix
    assert "GPU 1 of node1" in found.why


def test_on_a_workstation_a_free_gpu_is_information() -> None:
    machine = make_machine({**WELL, "mine_gib": 60.0}, IDLE)
    assert only(make_run([make_rank(BUSY)], [machine])).level == "information"


def test_a_run_that_goes_on_may_still_use_its_gpus() -> None:
    machine = make_machine({**WELL, "mine_gib": 60.0}, IDLE)
    run = make_run([make_rank(BUSY)], [machine], job="4211")
    assert find(replace(run, state="running"), ALL) == []


def test_a_cpu_job_that_reserved_a_gpu_is_told_which_torch_it_has() -> None:
    cpu = {**MODEL, "device": "cpu"}
    rank = make_rank(BUSY, is_on_device=False, model=cpu, torch="2.13.0+cpu")
    found = only(make_run([rank], [make_machine(IDLE)], job="4211"))
    assert (found.key, found.level) == ("gpu-for-cpu-job", "problem")
    assert "build for CPUs" in found.why
    assert found.waste is not None
    assert found.waste.share == 1.0
    rank = make_rank(BUSY, is_on_device=False, model=cpu, torch="2.13.0+cu130")
    assert '`model.to("cuda")`' in only(make_run([rank], [make_machine(IDLE)], job="4211")).fix


def test_without_a_model_the_job_needs_no_gpu() -> None:
    found = only(make_run([], [make_machine(IDLE)], job="4211"))
    assert found.fix.startswith("Ask for no GPU")
    assert find(make_run([], [make_machine(IDLE)]), ALL) == []


def test_a_gpu_used_now_and_then_is_told_where_no_step_says_why() -> None:
    rows = [
        Row(at, at + 1, {"gpu.0.duty_pct": one(80.0 if at % 10 == 0 else 0.0), "gpu.0.mine_gib": one(2.0)})
        for at in range(300)
    ]  # fmt: skip
    whole = merged(rows)
    assert whole is not None
    machine = Machine("node1", {}, whole.stats, tuple(rows))
    found = only(make_run([], [machine], 300.0))
    assert (found.key, found.level) == ("gpu-mostly-idle", "advice")
    assert found.figures["idle_share"] == pytest.approx(0.9)
    assert find(make_run([], [machine], 60.0), ALL) == []
    # Steps have rules of their own.
    assert "gpu-mostly-idle" not in keys(make_run([make_rank(BUSY)], [machine], 300.0))


# -- heat and power ------------------------------------------------------------------

HOT = {**WELL, "throttled": 0.9, "temp_c": 88.0, "power_w": 420.0}


def test_a_hot_gpu_is_told_with_its_node() -> None:
    found = only(on_gpu(BUSY, HOT))
    assert (found.key, found.level, found.gain) == ("gpu-too-hot", "advice", None)
    assert "88 °C" in found.why
    assert "`#SBATCH --exclude=node1`" in found.fix


def test_with_clocks_known_heat_has_its_price() -> None:
    found = only(on_gpu(BUSY, {**HOT, "hot": 1.0, "clock_mhz": 990.0}))
    assert (found.level, found.confidence) == ("problem", "high")
    assert found.gain is not None
    # At half the clocks, at most twice as fast in 54 of 60 s.
    assert found.gain.ceiling == pytest.approx(1 / (1 - 0.98 / 2 * 54 * 16 * 0.0645 / 60), rel=0.03)


def test_a_gpu_at_its_power_limit_is_well_used() -> None:
    found = only(on_gpu(BUSY, {**WELL, "throttled": 1.0, "power_w": 698.0}))
    assert (found.key, found.level) == ("gpu-power-limit", "information")


def test_one_reading_that_stands_for_half_a_minute_shows_no_power_limit() -> None:
    summary = on_gpu(BUSY, {**WELL, "throttled": 1.0, "power_w": 698.0})
    (machine,) = summary.machines
    for rows, is_found in ((machine.rows[-1:], False), (machine.rows[-5:], True)):
        rare = tuple(
            Row(row.start_s, row.end_s,
                {name: stat._replace(count=30) for name, stat in row.stats.items()})
            for row in rows
        )  # fmt: skip
        whole = merged(rare)
        assert whole is not None
        read = replace(machine, rows=rare, stats=whole.stats)
        assert (gpus.power_limit(replace(summary, machines=(read,))) is not None) is is_found


# -- healthy and weak ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("phases", "readings"),
    [
        (BUSY, WELL),  # a large model in bfloat16
        ({**BUSY, "optimizer": 9.0}, {**WELL, "sm_pct": 60.0, "tensor_pct": 15.0, "mem_gib": 40.0}),
        # Convolutions in TF32, with a loss that is read in every step.
        ({**BUSY, "other": 2.0}, {**WELL, "duty_pct": 93.0, "tensor_pct": 9.0, "fp32_pct": 12.0}),
        ({"graph": 30.0, "data": 0.3, "h2d": 0.2}, {**WELL, "sm_pct": 70.0}),
        # A card that tells load and power alone (before Hopper).
        (BUSY, {"duty_pct": 97.0, "mem_gib": 30.0, "power_w": 380.0, "temp_c": 70.0, "throttled": 0.1}),
    ],
)  # fmt: skip
def test_a_healthy_run_is_told_nothing(
    phases: Mapping[str, float], readings: Mapping[str, float]
) -> None:
    assert keys(on_gpu(phases, readings, lines=(waiting_line(0.3),))) == []


def test_weak_data_is_told_nothing() -> None:
    run = on_gpu(LAUNCHING, TINY)
    rank = run.ranks[0]
    assert rank.steady is not None
    few = replace(rank, steady=replace(rank.steady, steps=19))
    assert find(replace(run, ranks=(few,)), ALL) == []
    by_host = replace(rank, steady=replace(rank.steady, device_steps=0))
    assert find(replace(run, ranks=(by_host,)), ALL) == []
    # A GPU that cannot be told apart, readings that are too few, and none at all.
    two = make_machine({**TINY, "mine_gib": 1.0}, {**TINY, "mine_gib": 1.0})
    stranger = replace(rank, facts={**rank.facts, "device": {"uuid": "GPU-9"}})
    assert find(replace(run, ranks=(stranger,), machines=(two,)), ALL) == []
    short = make_machine({**TINY, "mine_gib": 1.0}, seconds=START_S + 3)
    assert find(replace(run, machines=(short,)), ALL) == []
    assert find(replace(run, machines=()), ALL) == []


def test_readings_between_the_steps_are_not_taken_for_those_of_the_steps() -> None:
    # Half of the time is evaluation: the GPU's load is not the load of the steps.
    run = on_gpu(LAUNCHING, TINY)
    rank = run.ranks[0]
    rows = tuple(row for row in rank.rows if row.start_s < START_S or row.start_s % 2 == 0)
    assert find(replace(run, ranks=(replace(rank, rows=rows),)), ALL) == []
