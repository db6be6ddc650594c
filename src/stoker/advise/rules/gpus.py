"""GPUs that were held and not used, or that are slowed down by heat or power."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stoker.advise.finding import Finding, Gain, Rule, Waste
from stoker.advise.rules.steady import (
    find_gpu,
    gpu_facts,
    level_of,
    model_facts,
    place,
    read_steady,
)
from stoker.advise.verdict import MIN_READINGS, HeldGpu, gpu_numbers, held_gpus, is_read_often
from stoker.units import plural, render_seconds, render_share
from stoker.watch.series import known_number
from stoker.watch.summary import Machine, Rank, Summary

# A load below this is the noise of an idle GPU.
IDLE_PCT = 5.0
# Shorter runs are tries, in which start-up is most of the time.
MIN_RUN_S = 120.0
MOSTLY_IDLE = 0.5
# The part of the readings in which clocks were held down before it is worth a word.
OFTEN = 0.2
# NVIDIA's data centre GPUs slow down between 85 and 95 °C.
HOT_C = 83.0
AT_LIMIT = 0.95
BELOW_LIMIT = 0.9
# Machines and ranks whose readings and lines are looked at one by one.
MAX_MACHINES = 8


def unused_gpus(summary: Summary) -> Finding | None:
    """Some of the GPUs of the job were never touched."""
    held, idle = _held(summary)
    if not idle or len(idle) == len(held):
        return None
    used = len(held) - len(idle)
    is_reserved = _is_reserved(summary)
    each = used // len({gpu.host for gpu in held if gpu.is_used is not False}) or 1
    ranks = f"one process for each GPU (`torchrun --nproc-per-node={_per_host(held)} …` with DDP)"
    return Finding(
        key="gpus-unused",
        level="problem" if is_reserved else "information",
        what=f"{len(idle)} of {plural(len(held), 'GPU')} {'was' if len(idle) == 1 else 'were'} never used.",
        why=(
            f"No process of the run was on {'it' if len(idle) == 1 else 'them'} in "
            f"{render_seconds(summary.wall_s)}: {_names(idle)}."
        ),
        fix=(
            f"Ask for what is used, `#SBATCH --gpus-per-node={each}`, or start {ranks}."
            if is_reserved
            else f"To use them all, start {ranks}."
        ),
        confidence="high",
        safety="A",
        waste=_waste(len(idle), len(held)) if is_reserved else None,
        figures={"gpu_count": len(held), "unused_count": len(idle)},
    )


def gpu_for_cpu_job(summary: Summary) -> Finding | None:
    """A job that ran on the CPU alone held a GPU."""
    held, idle = _held(summary)
    if not held or len(idle) < len(held):
        return None
    is_reserved = _is_reserved(summary)
    models = [model_facts(rank) for rank in summary.ranks]
    on_cpu = any(model.get("device") == "cpu" for model in models)
    # Without a model on the CPU nobody knows that the GPU was wanted at all.
    if not is_reserved and not on_cpu:
        return None
    what = "The GPU was" if len(held) == 1 else f"All {len(held)} GPUs were"
    return Finding(
        key="gpu-for-cpu-job",
        level="problem" if is_reserved else "advice",
        what=f"{what} never used: the run took place on the CPU.",
        why=_why_on_cpu(summary, on_cpu),
        fix=_use_gpu(summary, on_cpu, is_reserved),
        confidence="high",
        safety="A" if is_reserved else "B",
        waste=_waste(len(held), len(held)) if is_reserved else None,
        figures={"gpu_count": len(held)},
    )


def _why_on_cpu(summary: Summary, on_cpu: bool) -> str:
    if on_cpu and _is_cpu_build(summary):
        return "This PyTorch is the build for CPUs, which knows no GPU."
    if on_cpu:
        return "The model's parameters are on the CPU."
    return f"No process of the run was on a GPU in {render_seconds(summary.wall_s)}."


def _use_gpu(summary: Summary, on_cpu: bool, is_reserved: bool) -> str:
    leave = "ask for no GPU: leave out `--gres` and `--gpus…`, and take a partition for CPUs"
    if on_cpu and _is_cpu_build(summary):
        use = "Install PyTorch with CUDA (or load the site's module of it) and move the model there"
    elif on_cpu:
        use = '`model.to("cuda")`, and each batch likewise'
    else:
        return f"{leave[0].upper()}{leave[1:]}."
    return f"{use}; or {leave}." if is_reserved else f"{use}."


def mostly_idle(summary: Summary) -> Finding | None:
    """A GPU is used now and then, in a run without steps that could say why."""
    if summary.wall_s < MIN_RUN_S or any(rank.steps for rank in summary.ranks):
        # With steps, their own rules say what the GPU waits for.
        return None
    used = {(gpu.host, gpu.index) for gpu in held_gpus(summary) if gpu.is_used}
    shares = [
        share
        for machine in summary.machines[:MAX_MACHINES]
        for number in gpu_numbers(machine)
        if (machine.host, number) in used and (share := _idle_share(machine, number)) is not None
    ]
    idle = sum(shares) / len(shares) if shares else 0.0
    if idle < MOSTLY_IDLE:
        return None
    lines = [line for rank in summary.ranks[:MAX_MACHINES] for line in rank.lines]
    line = max(lines, key=lambda each: each.own_s, default=None)
    return Finding(
        key="gpu-mostly-idle",
        level="advice",
        what=f"The GPU was held for {render_seconds(summary.wall_s)} and idle {render_share(idle)} of it.",
        why=(
            f"Its load was below {IDLE_PCT:.0f} % in that time"
            f"{f'; the slowest line is {place(line)}' if line else ''}."
        ),
        fix=(
            "Do what needs no GPU in a job without one, before this job (`sbatch --dependency=afterok:JOB`), "
            "and ask for a GPU only for the rest."
        ),
        confidence="medium",
        safety="A",
        waste=Waste(f"the GPU for {render_share(idle)} of the time", idle),
        figures={"idle_share": idle},
    )


def _idle_share(machine: Machine, number: int) -> float | None:
    name = f"gpu.{number}.duty_pct"
    told = [(row.end_s - row.start_s, row.stats[name]) for row in machine.rows if name in row.stats]
    known_s = sum(length for length, _ in told)
    if len(told) < MIN_READINGS or known_s <= 0:
        return None
    return sum(length for length, stat in told if stat.mean < IDLE_PCT) / known_s


def too_hot(summary: Summary) -> Finding | None:
    """A GPU lowers its clocks because it is hot."""
    hot = [
        (machine, number)
        for machine in summary.machines
        for number in gpu_numbers(machine)
        if is_hot(machine, number)
    ]
    if not hot:
        return None
    machine, number = max(hot, key=lambda each: _hot_share(*each))
    share, temperature = _hot_share(machine, number), machine.stats.get(f"gpu.{number}.temp_c")
    gain = _cool_gain(summary, machine, number)
    more = f" and {plural(len(hot) - 1, 'more GPU')}" if len(hot) > 1 else ""
    return Finding(
        key="gpu-too-hot",
        level=(level_of(gain) if gain else None) or "advice",
        what=f"GPU {number} of {machine.host}{more} is slowed down by heat.",
        why=(
            f"Its clocks were held down in {render_share(share)} of the readings"
            f"{f', at up to {temperature.max:.0f} °C' if temperature else ''}, below its power limit."
        ),
        fix=(
            f"Tell the site's support which node it is, and leave it out meanwhile: "
            f"`#SBATCH --exclude={machine.host}`."
        ),
        confidence="high" if f"gpu.{number}.hot" in machine.stats else "medium",
        safety="A",
        gain=gain,
        figures={"slowed_share": share, "gpu_count": len(hot)}
        | ({"temp_c": temperature.max} if temperature else {}),
    )


def is_hot(machine: Machine, number: int) -> bool:
    """Say whether heat, and not the power limit, holds a GPU's clocks down."""
    if f"gpu.{number}.hot" in machine.stats:
        return _hot_share(machine, number) >= OFTEN
    power, limit = machine.stats.get(f"gpu.{number}.power_w"), _power_limit(machine, number)
    temperature = machine.stats.get(f"gpu.{number}.temp_c")
    if power is None or limit is None or temperature is None:
        return False
    is_below = power.mean < BELOW_LIMIT * limit
    return _hot_share(machine, number) >= OFTEN and temperature.mean >= HOT_C and is_below


def _hot_share(machine: Machine, number: int) -> float:
    for metric in ("hot", "throttled"):
        stat = machine.stats.get(f"gpu.{number}.{metric}")
        if stat is not None:
            is_known = is_read_often(machine, f"gpu.{number}.{metric}")
            return min(1.0, stat.mean) if is_known else 0.0
    return 0.0


def _cool_gain(summary: Summary, machine: Machine, number: int) -> Gain | None:
    """What full clocks would bring, where they are known and the slowest rank computes there."""
    steady = read_steady(summary)
    if steady is None or steady.busy is None or steady.rank.host != machine.host:
        return None
    clock, most = steady.mean("clock_mhz"), known_number(steady.gpu.get("max_clock_mhz"))
    if steady.gpu.get("index") != number or not clock or not most or clock >= most:
        return None
    saved = steady.busy * (1 - clock / most)
    # Work that the memory limits does not follow the clocks.
    return steady.gain(0.3 * saved, saved, saved)


def power_limit(summary: Summary) -> Finding | None:
    """A GPU runs as fast as its power limit allows: nothing to do, but worth knowing."""
    for machine in summary.machines:
        for number in gpu_numbers(machine):
            slowed = machine.stats.get(f"gpu.{number}.throttled")
            power, limit = machine.stats.get(f"gpu.{number}.power_w"), _power_limit(machine, number)
            if slowed is None or power is None or limit is None:
                continue
            if not is_read_often(machine, f"gpu.{number}.throttled"):
                continue
            if slowed.mean < OFTEN or power.max < AT_LIMIT * limit or is_hot(machine, number):
                continue
            return Finding(
                key="gpu-power-limit",
                level="information",
                what=f"GPU {number} of {machine.host} works at its power limit.",
                why=(
                    f"It drew up to {power.max:.0f} of {limit:.0f} W, and its clocks were held down in "
                    f"{render_share(min(1.0, slowed.mean))} of the readings."
                ),
                fix="Nothing: a GPU that is well used does this.",
                confidence="high",
                figures={"power_w": power.max, "power_limit_w": limit},
            )
    return None


def hot_rank(summary: Summary, rank: Rank) -> bool:
    """Say whether the GPU of a rank is slowed down by heat."""
    machine = next((each for each in summary.machines if each.host == rank.host), None)
    gpu = find_gpu(machine, rank)
    return machine is not None and gpu is not None and is_hot(machine, gpu["index"])


def _held(summary: Summary) -> tuple[Sequence[HeldGpu], Sequence[HeldGpu]]:
    """Return the GPUs of a run that is over, and those never used; none if any is unknown."""
    held = held_gpus(summary)
    if summary.state == "running" or any(gpu.is_used is None for gpu in held):
        return [], []
    return held, [gpu for gpu in held if gpu.is_used is False]


def _is_reserved(summary: Summary) -> bool:
    told = summary.run.get("environment")
    environment: Mapping[str, Any] = told if isinstance(told, dict) else {}
    return "SLURM_JOB_ID" in environment or any(
        "slurm" in machine.facts for machine in summary.machines
    )


def _is_cpu_build(summary: Summary) -> bool:
    return any(str(rank.facts.get("torch", "")).endswith("+cpu") for rank in summary.ranks)


def _power_limit(machine: Machine, number: int) -> float | None:
    facts = [each for each in gpu_facts(machine) if each.get("index") == number]
    return known_number(facts[0].get("power_limit_w")) if facts else None


def _per_host(held: Sequence[HeldGpu]) -> int:
    hosts = [gpu.host for gpu in held]
    return max(hosts.count(host) for host in hosts)


def _names(idle: Sequence[HeldGpu]) -> str:
    told = [f"GPU {gpu.index} of {gpu.host}" for gpu in idle[:3]]
    return ", ".join(told) + (f" and {len(idle) - 3} more" if len(idle) > 3 else "")


def _waste(idle: int, held: int) -> Waste:
    return Waste(f"{idle} of {plural(held, 'GPU')}", idle / held)


RULES: tuple[Rule, ...] = (unused_gpus, gpu_for_cpu_job, mostly_idle, too_hot, power_limit)
