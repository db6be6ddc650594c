"""A GPU that could do more in each step: launches, waits of the host, number formats, batch size."""

from __future__ import annotations

from stoker.advise.finding import Finding, Rule
from stoker.advise.rules.loading import freeing_s, pageable_copies
from stoker.advise.rules.pauses import slow_saving
from stoker.advise.rules.ranks import find_lag
from stoker.advise.rules.steady import (
    Steady,
    level_of,
    model_facts,
    place,
    places,
    read_steady,
)
from stoker.advise.verdict import LARGE_SHARE, WORTH_SHARE, other_lines
from stoker.units import render_seconds, render_share
from stoker.watch.series import known_number
from stoker.watch.summary import Line, Summary

# Kernels run for less than this part of the model's time: between them the GPU waits.
SPARSE = 0.6
# The host is busy launching while the GPU waits; if it were far ahead, it would not be the cause.
IN_STEP = 0.8
# What graphs leave of the waits between kernels: they start about a microsecond apart even then,
# and the loss, the copy of the inputs and Python around the model stay.
GRAPHED = (0.4, 0.9)
# A line that waits for the device may also launch work; this part of its time may be that.
LAUNCHING = 0.3
# Tensor cores that work less than this are not what computes.
NO_TENSOR_PCT = 2.0
# Matrices in TF32 against plain float32, on GPUs that tell their tensor activity (Hopper and
# newer: 494 against 67 TFLOP/s by the data sheet); small ones gain less.
TF32_SPEED = (2.5, 7.0)
# A matrix product keeps the float32 units busy for this part of its time.
FP32_PIPE = (0.5, 0.95)
# Memory that is left to the allocator and to the largest batch.
MEMORY_KEPT = 0.9
ROOMY = 0.5
EMPTY_SM = 0.4


def launch_bound(summary: Summary) -> Finding | None:
    """The GPU waits between kernels because the host cannot launch them fast enough."""
    steady = read_steady(summary)
    idle = None if steady is None else _launch_idle(steady)
    if steady is None or idle is None:
        return None
    # Graphs and compilers take the model; the optimizer stays as it is.
    model = 1 - steady.split.share("optimizer") / steady.compute
    low, high = (each * model * idle for each in GRAPHED)
    gain = steady.gain(low, high, idle)
    level = level_of(gain)
    if level is None:
        return None
    busy = steady.busy or 0.0
    is_compiled = bool(model_facts(steady.rank).get("is_compiled"))
    graphs = "`model = torch.cuda.make_graphed_callables(model, (x,))` for inputs of one shape, or "
    return Finding(
        key="launch-bound",
        level=level,
        what="The GPU waits for the host to launch its kernels.",
        why=(
            f"Model and optimizer take {render_share(steady.compute)} of each step, but kernels run "
            f"only {render_share(busy)} of the time, and the host is busy launching all the while "
            f"({render_seconds(steady.step_s)} a step)."
        ),
        fix=(
            f"Launch the model as a whole: {'' if is_compiled else graphs}"
            '`model = torch.compile(model, mode="reduce-overhead")`, which compiles once, for about '
            "a minute. A larger batch helps too, but changes the training."
        ),
        confidence="high",
        safety="B",
        gain=gain,
        figures={"busy_share": busy, "compute_share": steady.compute, "idle_share": idle},
    )


def _launch_idle(steady: Steady) -> float | None:
    """Return the share of the step in which the GPU waits for launches; None if for something else."""
    busy, compute = steady.busy, steady.compute
    if not steady.is_on_device() or busy is None or busy > SPARSE * compute:
        return None
    idle = compute - busy
    device_s = sum(steady.split.phases.get(phase, 0.0) for phase in ("forward", "backward"))
    host_s = sum(steady.host_s.get(phase, 0.0) for phase in ("forward", "backward"))
    if not steady.host_s or host_s < IN_STEP * device_s:
        return None
    # A loader or waits for values of the device are the cause then, and have rules of their own.
    if steady.split.share("data") >= idle or _waited(steady) >= WORTH_SHARE:
        return None
    return idle if idle >= LARGE_SHARE else None


def sync_lines(summary: Summary) -> Finding | None:
    """Lines make the host wait for values of the GPU, and the GPU then waits for the host."""
    steady = read_steady(summary)
    if steady is None or not steady.is_on_device() or steady.busy is None:
        return None
    lines = _sync_lines(steady)
    waited = _waited(steady)
    if waited < WORTH_SHARE:
        return None
    # Copies keep the GPU, too, but are no kernels.
    busy = min(1.0, steady.busy + steady.split.share("h2d"))
    host = 1 - waited
    # Without the waits host and GPU work at the same time: the longer one counts.
    gain = steady.gain(
        1 - max(min(1.0, 1.05 * busy), host + LAUNCHING * waited), 1 - max(busy, host), 1 - busy
    )
    level = level_of(gain)
    if level is None:
        return None
    shown = [line for line in lines if line.own_s >= lines[0].own_s / 10]
    return Finding(
        key="sync-lines",
        level=level,
        what=f"The host waits for values of the GPU at {places(shown)}.",
        why=(
            f"{'It waits' if len(shown) == 1 else 'There it waits'} {render_share(waited)} of each step, and "
            f"the GPU, which works {render_share(steady.busy)} of the time, waits for the next launches "
            "after that."
        ),
        fix=(
            f"Do not ask for values in every step at {place(shown[0])}: keep them on the GPU "
            "(`total += loss.detach()`) and take `.item()`, print or test them every 100 steps."
        ),
        confidence="medium",
        safety="A",
        gain=gain,
        figures={"waited_share": waited, "busy_share": steady.busy, "line_count": len(lines)},
    )


def _sync_lines(steady: Steady) -> list[Line]:
    found = [line for line in steady.rank.lines if line.is_sync and line.own_s > 0]
    return sorted(found, key=lambda line: -line.own_s)


def _waited(steady: Steady) -> float:
    """Return the share of the steps that the host spends at lines that wait for the device."""
    own_s = sum(line.own_s for line in _sync_lines(steady))
    steps_s = max(steady.rank.steps, steady.split.steps) * steady.step_s
    return min(0.95, own_s / steps_s)


def tensor_cores(summary: Summary) -> Finding | None:
    """The GPU multiplies matrices in plain float32, beside its tensor cores."""
    steady = read_steady(summary)
    if steady is None or not steady.is_on_device() or steady.compute < SPARSE:
        return None
    model = model_facts(steady.rank)
    sm, tensor = steady.mean("sm_pct"), steady.mean("tensor_pct")
    is_plain = model.get("dtype") == "float32" and model.get("matmul_precision") in (
        None,
        "highest",
    )
    if not is_plain or sm is None or tensor is None or tensor > NO_TENSOR_PCT:
        return None
    part = _matrix_part(steady, sm)
    if part is None:
        return None
    busy = steady.busy or 0.0
    low, high = (each * (1 - 1 / speed) for each, speed in zip(part, TF32_SPEED, strict=True))
    gain = steady.gain(low, high, max(busy, part[1]) * (1 - 1 / (TF32_SPEED[1] + 1)))
    is_sure = steady.mean("fp32_pct") is not None
    level = level_of(gain, is_sure)
    if level is None:
        return None
    figures = {"sm_pct": sm, "tensor_pct": tensor, "fp32_pct": steady.mean("fp32_pct")}
    return Finding(
        key="tensor-cores-idle",
        level=level,
        what="The GPU computes in float32, and its tensor cores do nothing.",
        why=(
            f"The model is float32; the SMs are active {sm:.0f} % of the time and the tensor cores "
            f"{render_share(tensor / 100)}."
        ),
        fix=(
            '`torch.set_float32_matmul_precision("high")` before training (TF32: rounds to 10 bits '
            'inside matrix products), or `torch.autocast("cuda", dtype=torch.bfloat16)` around the '
            "model and the loss."
        ),
        confidence="high" if is_sure else "medium",
        safety="B",
        gain=gain,
        figures={name: value for name, value in figures.items() if value is not None},
    )


def _matrix_part(steady: Steady, sm: float) -> tuple[float, float] | None:
    """Return between which shares of the step matrix products take; None if hardly any."""
    busy, fp32 = steady.busy or 0.0, steady.mean("fp32_pct")
    if fp32 is not None:
        low, high = fp32 / 100 / FP32_PIPE[1], fp32 / 100 / FP32_PIPE[0]
        return (min(busy, low), min(busy, high)) if fp32 >= 20 else None
    dram = steady.mean("dram_pct")
    # Full SMs and a quiet memory: arithmetic. With a busy memory it is adding and copying.
    if dram is None or sm < 60 or dram > 40:
        return None
    return 0.3 * sm / 100, min(busy, (sm - dram) / 100)


def small_batch(summary: Summary) -> Finding | None:
    """Kernels follow each other, but each fills a small part of the GPU, and memory is left."""
    steady = read_steady(summary)
    if steady is None or not steady.is_on_device():
        return None
    busy, sm = steady.busy or 0.0, steady.mean("sm_pct")
    total, used = known_number(steady.gpu.get("memory_gib")), steady.readings.get("mem_gib")
    if sm is None or sm <= 0 or not total or used is None or used.max <= 0:
        return None
    is_waiting = max(steady.split.share("data"), steady.split.share("comm")) >= WORTH_SHARE
    if busy < SPARSE or steady.compute < SPARSE or is_waiting or used.max > ROOMY * total:
        return None
    if sm / 100 > EMPTY_SM * busy or _waited(steady) >= WORTH_SHARE:
        return None
    times = min(MEMORY_KEPT * total / used.max, busy / (sm / 100))
    most = 1 - 1 / times
    gain = steady.gain(0.15 * most, 0.8 * most, most)
    if level_of(gain) is None:
        return None
    return Finding(
        key="batch-too-small",
        level="advice",
        what="Each step gives the GPU too little to do at a time.",
        why=(
            f"Kernels run {render_share(busy)} of the time but fill {sm:.0f} % of the SMs, and "
            f"{used.max:.0f} of {total:.0f} GiB of its memory are used."
        ),
        fix=(
            "Try a batch twice as large, and again while samples per second grow: set "
            "`batch_size` and adapt the learning rate; it changes the training."
        ),
        confidence="low",
        safety="C",
        gain=gain,
        figures={"busy_share": busy, "sm_pct": sm, "memory_share": used.max / total},
    )


def host_code(summary: Summary) -> Finding | None:
    """Code beside loading, model and optimizer takes a large part of each step."""
    steady = read_steady(summary)
    if steady is None or steady.split.share("other") < LARGE_SHARE:
        return None
    if find_lag(summary) is not None:  # one rank alone has it: `slow_rank` tells which
        return None
    if slow_saving(summary) is not None:  # checkpoints within the loop are told by their own rule
        return None
    other = steady.split.share("other")
    has_device = str(model_facts(steady.rank).get("device", "cpu")) != "cpu"
    if has_device:
        # On the GPU's own clock, and only as far as no kernel runs meanwhile.
        if not steady.is_on_device() or steady.busy is None:
            return None
        other = min(other, 1 - steady.busy)
    if pageable_copies(summary) is not None:
        # Pinned batches are freed by nobody in the loop.
        other -= freeing_s(summary, steady.rank) / (steady.split.steps * steady.step_s)
    if other < LARGE_SHARE or steady.split.share("data") >= other:
        return None
    gain = steady.gain(0.5 * other, other, other)
    # On a CPU it may be the work itself, such as a simulation.
    level = level_of(gain, is_sure=has_device)
    if level is None:
        return None
    line = _slowest_other(steady)
    where = f" at {place(line)}" if line else ""
    idle = "; the GPU waits meanwhile" if has_device else ""
    return Finding(
        key="host-code",
        level=level,
        what=f"Code beside loading, model and optimizer{where} takes {render_share(other)} of each step.",
        why=f"It takes {render_seconds(other * steady.usual_s)} of {render_seconds(steady.step_s)}{idle}.",
        fix=(
            f"Move {place(line) if line else 'it'} out of the loop, do it every 100 steps or in a "
            f"thread{', or on the GPU' if has_device else ''}."
            f"{'' if line else ' `stoker run --lines` shows which line it is.'}"
        ),
        confidence="high" if line else "medium",
        safety="A",
        gain=gain,
        figures={"other_share": other, "step_s": steady.step_s},
    )


def _slowest_other(steady: Steady) -> Line | None:
    # Before the first step everything is `other`: a line that took less may be from there.
    startup_s = steady.rank.startup_s or 0.0
    lines = [line for line in other_lines(steady.rank) if not line.is_sync]
    slowest = max(lines, key=lambda line: line.own_s, default=None)
    return slowest if slowest is not None and slowest.own_s > startup_s else None


RULES: tuple[Rule, ...] = (launch_bound, sync_lines, tensor_cores, small_batch, host_code)
