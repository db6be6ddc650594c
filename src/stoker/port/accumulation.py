"""Gradients over several batches: when the step is taken, and what may wait for it."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from stoker.port.script import text_of
from stoker.port.training import Training


@dataclass(frozen=True)
class Accumulation:
    """A step under a condition; `first` to `last` are the statements up to `backward`."""

    line: int
    is_clear: bool
    reason: str = ""
    condition: ast.expr | None = None
    first: ast.stmt | None = None
    last: ast.stmt | None = None


def find_accumulation(training: Training) -> Accumulation | None:
    """Return how gradients are accumulated, or `None` where each batch takes its step."""
    script = training.script
    for call in script.methods("step"):
        if not isinstance(call.func, ast.Attribute):
            continue
        scaled = bool(call.args) and training.optimizer.holds(call.args[0])
        if not training.optimizer.holds(call.func.value) and not scaled:
            continue
        loops = [each for each in training.batch_loops() if script.within(call, each)]
        for node in script.above(call):
            if node in loops:
                break
            if isinstance(node, ast.If) and "%" in text_of(node.test):
                return _read(training, node)
    return None


def _read(training: Training, branch: ast.If) -> Accumulation:
    script = training.script
    block = script.block(branch)
    if branch.orelse:
        return Accumulation(branch.lineno, False, "there is an `else` to the step")
    at = block.index(branch)
    calls = [each for each in training.backwards if any(script.within(each, s) for s in block[:at])]
    if not calls:
        return Accumulation(branch.lineno, False, "`backward` is not beside the step")
    last = next(i for i in range(at) if script.within(calls[-1], block[i]))
    first = next((i for i in range(last + 1) if _runs_model(training, block[i])), None)
    if first is None:
        return Accumulation(branch.lineno, False, "the forward pass is not beside `backward`")
    names = {n.id for n in ast.walk(branch.test) if isinstance(n, ast.Name)}
    for statement in block[first:at]:
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in names:
                why = f"`{node.id}` changes between the forward pass and the step"
                return Accumulation(branch.lineno, False, why)
    return Accumulation(branch.lineno, True, "", branch.test, block[first], block[last])


def _runs_model(training: Training, statement: ast.stmt) -> bool:
    return any(
        isinstance(node, ast.Call) and training.model.holds(node.func)
        for node in ast.walk(statement)
    )
