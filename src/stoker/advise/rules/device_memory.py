"""The GPU's own memory: a run that ended because it was full, or that works at its limit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stoker.advise.finding import Finding, Rule
from stoker.units import plural, render_number, render_share
from stoker.watch.series import known_number
from stoker.watch.summary import Rank, Summary

# What PyTorch raises. TensorFlow's error of that kind is also that of a full disk.
FULL_ERRORS = ("torch.OutOfMemoryError", "torch.cuda.OutOfMemoryError")
# In the first steps kernels are tried out, and take what is left for a moment.
MIN_RETRIES = 5
RETRIES_A_STEP = 0.01
# What the allocator has taken and no tensor is in: pieces between tensors, none large enough.
MUCH_IN_PIECES = 0.1

LESS = (
    "Halve `batch_size` and take two batches before each `optimizer.step()`, or hold less: "
    '`torch.autocast("cuda", dtype=torch.bfloat16)`, `torch.utils.checkpoint` around the large blocks'
)


def out_of_memory(summary: Summary) -> Finding | None:
    """The program ended with the framework's error that the GPU has no memory left."""
    rank = next((each for each in summary.ranks if each.facts.get("error") in FULL_ERRORS), None)
    if rank is None or summary.state in ("running", "ended"):
        return None
    memory = _memory(rank)
    told = _held(memory)
    return Finding(
        key="gpu-out-of-memory",
        level="problem",
        what="The run ended because the memory of its GPU was full.",
        why=f"{summary.name_of(rank).capitalize()} on {rank.host} ended with {rank.facts['error']}{told}.",
        fix=_fix(memory),
        confidence="high",
        safety="B",
        figures=_figures(memory),
    )


def full_memory(summary: Summary) -> Finding | None:
    """The allocator finds nothing left, gives back what it keeps, and tries again, many times."""
    if out_of_memory(summary) is not None:
        return None
    rank = max(summary.ranks, key=_retries, default=None)
    if rank is None or _retries(rank) < max(MIN_RETRIES, RETRIES_A_STEP * rank.steps):
        return None
    memory = _memory(rank)
    return Finding(
        key="gpu-memory-full",
        level="advice",
        what="The memory of the GPU is full, and steps wait until some is free.",
        why=(
            f"{plural(int(_retries(rank)), 'time')} in {plural(rank.steps, 'step')} nothing was left, and all "
            f"that PyTorch keeps for later was given back{_held(memory)}."
        ),
        fix=_fix(memory),
        confidence="high",
        safety="B",
        figures=_figures(memory),
    )


def _memory(rank: Rank) -> Mapping[str, Any]:
    memory = rank.facts.get("memory")
    return memory if isinstance(memory, dict) else {}


def _number(memory: Mapping[str, Any], name: str) -> float:
    return known_number(memory.get(name)) or 0.0


def _retries(rank: Rank) -> float:
    return _number(_memory(rank), "retries")


def _held(memory: Mapping[str, Any]) -> str:
    tensors, total = (_number(memory, name) for name in ("tensors_gib", "total_gib"))
    if not tensors or not total:
        return ""
    return f"; its tensors took up to {render_number(tensors)} of {render_number(total)} GiB"


def _fix(memory: Mapping[str, Any]) -> str:
    tensors, taken, total = (
        _number(memory, name) for name in ("tensors_gib", "taken_gib", "total_gib")
    )
    lost = (taken - tensors) / total if total else 0.0
    if lost < MUCH_IN_PIECES:
        return f"{LESS}."
    return (
        f"{render_share(lost)} of the memory lay in pieces between tensors: set "
        f"`PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True` in the job. If that is not enough: {LESS}."
    )


def _figures(memory: Mapping[str, Any]) -> dict[str, float]:
    names = ("tensors_gib", "taken_gib", "total_gib", "retries")
    return {name: value for name in names if (value := known_number(memory.get(name))) is not None}


RULES: tuple[Rule, ...] = (out_of_memory, full_memory)
