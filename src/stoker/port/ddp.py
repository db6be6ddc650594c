"""To DistributedDataParallel: the model is wrapped, gradients are averaged in `backward`."""

from __future__ import annotations

import ast

from stoker.port.accumulation import find_accumulation
from stoker.port.common import Port, common_block, first_training, make_common
from stoker.port.edits import UnreachableError
from stoker.port.script import pairs, text_of

IMPORTS = ("from torch.nn.parallel import DistributedDataParallel",)


def rewrite(port: Port) -> None:
    """Note the changes for DDP."""
    make_common(port, is_wrapped=True)
    statement, name = wrap_place(port)
    options = unused(port, statement)
    port.edits.insert_after(statement, f"{name} = DistributedDataParallel({name}{options})")
    found = find_accumulation(port.training)
    if found is not None and found.first and found.last and found.condition:
        when = text_of(found.condition)
        model = forward_name(port, found.first)
        header = f"with contextlib.nullcontext() if {when} else {model}.no_sync():"
        port.edits.enclose(found.first, found.last, header)
        port.notes.append(
            f"line {found.line}: gradients are averaged once a step, not once a batch (`no_sync`)"
        )


def unused(port: Port, wrap: ast.stmt) -> str:
    """Return the option for models of which a part is frozen after they are wrapped."""
    for node in port.script.nodes:
        is_set = isinstance(node, ast.Attribute) and (
            (node.attr == "requires_grad" and isinstance(node.ctx, ast.Store))
            or node.attr == "requires_grad_"
        )
        if is_set and not _is_before(port, node, wrap):
            line = getattr(node, "lineno", 0)
            port.notes.append(
                f"line {line}: a part of the model is frozen after it is made: DDP looks for unused "
                "parameters in each step; freeze before the model is wrapped to save this"
            )
            return ", find_unused_parameters=True"
    return ""


def _is_before(port: Port, node: ast.AST, wrap: ast.stmt) -> bool:
    same = port.script.scope(node) is port.script.scope(wrap)
    return same and getattr(node, "lineno", 0) <= (wrap.end_lineno or 0)


def wrap_place(port: Port) -> tuple[ast.stmt, str]:
    """Return the statement after which the model is whole and on its device, and its name."""
    script, training = port.script, port.training
    scope, bindings = training.owners()[0]
    name = next(
        text_of(target) for target, _, _ in pairs(bindings[-1]) if training.model.holds(target)
    )
    last = bindings[-1]
    first = first_training(port)
    for node in script.own(scope):
        if not isinstance(node, ast.stmt) or node.lineno <= last.lineno:
            continue
        if first is not None and node.lineno >= first.lineno:
            continue
        if _moves(port, node):
            last = node
    if first is not None:
        found = common_block(script, last, first)[0]
        if found.lineno >= first.lineno:
            raise UnreachableError(found.lineno)
        return found, name
    while len(script.block(last)) and isinstance(script.parents[last], ast.If | ast.With | ast.Try):
        if is_entry(script.parents[last]):
            break
        last = script.statement(script.parents[last])
    return last, name


def is_entry(node: ast.AST) -> bool:
    """Whether this is the block that runs when the script is the program."""
    return isinstance(node, ast.If) and "__name__" in text_of(node.test)


def _moves(port: Port, node: ast.stmt) -> bool:
    """Whether a statement puts the model on a device, or binds it anew."""
    model = port.training.model
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        func = node.value.func
        if isinstance(func, ast.Attribute) and func.attr in ("to", "cuda", "half", "float"):
            return model.holds(func.value)
    return isinstance(node, ast.Assign | ast.AnnAssign) and any(
        model.holds(target) and model.holds(value, place) for target, value, place in pairs(node)
    )


def forward_name(port: Port, statement: ast.stmt) -> str:
    """Return the name that the forward pass in a statement has for the model."""
    return next(
        text_of(node.func)
        for node in ast.walk(statement)
        if isinstance(node, ast.Call) and port.training.model.holds(node.func)
    )
