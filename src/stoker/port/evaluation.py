"""Evaluations that can be divided: loops that do no more than add up numbers.

Each rank takes every WORLD_SIZE-th batch, and the sums are put together after the loop. The batches
are those of one process, so the figures are too. A loop that does anything else stays whole.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from stoker.port.script import Script, pairs, text_of
from stoker.port.training import Training


def find_divisible(training: Training) -> Iterator[tuple[ast.For, list[str]]]:
    """Yield each loop that may be divided, with the sums to put together after it."""
    for node in training.script.nodes:
        if isinstance(node, ast.For) and _is_evaluation(training, node):
            sums = _read_sums(training, node)
            if sums:
                yield node, sums


def _is_evaluation(training: Training, loop: ast.For) -> bool:
    """Whether a loop goes straight over a loader that all ranks have whole."""
    if not isinstance(loop.iter, ast.Name | ast.Attribute) or loop.orelse:
        return False
    if loop in training.loops or training.is_shared(loop.iter):
        return False
    return any(each.flow.holds(loop.iter) for each in training.loaders)


def _read_sums(training: Training, loop: ast.For) -> list[str]:
    """Return the names that a loop adds numbers to; none if it does anything else."""
    script = training.script
    sums: dict[str, None] = {}
    for statement in _flat(loop.body):
        if isinstance(statement, ast.AugAssign) and isinstance(statement.target, ast.Name):
            if not isinstance(statement.op, ast.Add) or not _is_number(statement.value):
                return []
            sums[statement.target.id] = None
        elif not isinstance(statement, ast.Assign | ast.Assert) or not _is_local(statement):
            return []
    names = {each.id for each in ast.walk(loop) if isinstance(each, ast.Name)
             and isinstance(each.ctx, ast.Store)}  # fmt: skip
    is_plain = (
        all(_starts_at_zero(script, loop, name) for name in sums)
        and all(_is_read_once(loop, name) for name in sums)
        and not any(_leaves(script, loop, name) for name in names - set(sums))
        and not _gives_model_away(training, loop)
    )
    return list(sums) if is_plain else []


def _flat(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for each in body:
        if isinstance(each, ast.With):
            yield from _flat(each.body)
        else:
            yield each


def _is_number(value: ast.expr) -> bool:
    """Whether a value is a number of Python on every rank, also on one that has no batch."""
    if isinstance(value, ast.BinOp):
        return _is_number(value.left) and _is_number(value.right)
    if isinstance(value, ast.Constant):
        return isinstance(value.value, int | float)
    if isinstance(value, ast.Call):
        name = text_of(value.func).rsplit(".", 1)[-1]
        return name in ("item", "float", "int", "len", "size", "numel")
    return isinstance(value, ast.Subscript) and text_of(value).endswith(".shape[0]")


def _is_local(statement: ast.Assign | ast.Assert) -> bool:
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    parts = [each for target in targets for each in ast.walk(target)]
    return not any(isinstance(each, ast.Attribute | ast.Subscript) for each in parts)


def _starts_at_zero(script: Script, loop: ast.For, name: str) -> bool:
    """Whether a sum is set to 0 each time before the loop."""
    scope = script.scope(loop)
    stores = [each for each in script.stores(scope, name) if each.lineno < loop.lineno]
    if not stores or any(script.within(each, loop) for each in script.stores(scope, name)):
        return False
    last = max(stores, key=lambda each: each.lineno)
    around = [each for each in script.above(loop) if isinstance(each, ast.For | ast.While | ast.If)]
    if not all(script.within(last, each) for each in around):
        return False
    values = [value for target, value, _ in pairs(last) if text_of(target) == name]
    return len(values) == 1 and isinstance(values[0], ast.Constant) and values[0].value == 0


def _is_read_once(loop: ast.For, name: str) -> bool:
    """Whether nothing in the loop looks at a sum on its way."""
    return not any(
        isinstance(each, ast.Name) and each.id == name and isinstance(each.ctx, ast.Load)
        for each in ast.walk(loop)
    )


def _leaves(script: Script, loop: ast.For, name: str) -> bool:
    """Whether a value of one batch is read in a later batch, or after the loop."""
    scope = script.scope(loop)
    stores = script.stores(scope, name)
    for node in script.own(scope):
        if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load):
            before = [each for each in stores if each.lineno <= node.lineno]
            last = max(before, key=lambda each: each.lineno, default=None)
            is_inside = last is not None and script.within(last, loop)
            if script.within(node, loop) != is_inside:
                return True
    return False


def _gives_model_away(training: Training, loop: ast.For) -> bool:
    """Whether the model runs in another function, where it may be the wrapped one."""
    for call in ast.walk(loop):
        if isinstance(call, ast.Call):
            values = [*call.args, *(each.value for each in call.keywords)]
            if any(training.model.holds(each) for each in values):
                return True
            if any(function in training.trainers for function in training.script.targets_of(call)):
                return True
    return False
