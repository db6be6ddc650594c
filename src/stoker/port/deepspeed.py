"""To DeepSpeed: an engine takes the place of the model, and steps the optimizer."""

from __future__ import annotations

import ast

from stoker.port.accelerate import change_backward
from stoker.port.common import Port, common_block, make_common
from stoker.port.ddp import wrap_place
from stoker.port.script import Scope, text_of

IMPORTS = ("import deepspeed",)


def rewrite(port: Port) -> None:
    """Note the changes for DeepSpeed."""
    make_common(port, is_wrapped=True)
    port.need("deepspeed")
    statement, model = wrap_place(port)
    optimizer = port.training.optimizers[-1]
    last = later(port, statement, optimizer.call)
    made = f"model={model}, optimizer={optimizer.name}, config=DEEPSPEED"
    port.edits.insert_after(last, f"{model}, *_ = deepspeed.initialize({made})")
    for call in port.training.backwards:
        name = model_in(port, port.script.scope(call), model)
        change_backward(port, f"{name}.backward({{}})")
        break
    _steps(port, model)
    port.notes.append(
        "DEEPSPEED at the top is its configuration; ZeRO 1 needs a C++ compiler on the first run"
    )


def _steps(port: Port, model: str) -> None:
    for call in port.script.methods("step"):
        func = call.func
        if isinstance(func, ast.Attribute) and port.training.optimizer.holds(func.value):
            name = model_in(port, port.script.scope(call), model)
            port.edits.change(call, lambda _, name=name: f"{name}.step()")  # type: ignore[misc]


def later(port: Port, statement: ast.stmt, call: ast.Call) -> ast.stmt:
    """Return the statement of the block in which both model and optimizer are there."""
    made = port.script.statement(call)
    if made.lineno <= statement.lineno:
        return statement
    return common_block(port.script, made, statement)[0]


def model_in(port: Port, scope: Scope, otherwise: str) -> str:
    """Return the name of the model in a function."""
    for node in port.script.own(scope):
        if isinstance(node, ast.Call) and port.training.model.holds(node.func):
            return text_of(node.func)
    for where, name in port.training.model.names:
        if where is scope:
            return name
    return otherwise
