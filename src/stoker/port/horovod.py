"""To Horovod: the optimizer averages gradients; the model is not wrapped."""

from __future__ import annotations

import ast

from stoker.port.common import Port, make_common
from stoker.port.ddp import wrap_place
from stoker.port.deepspeed import later

IMPORTS = ("import horovod.torch as hvd",)


def rewrite(port: Port) -> None:
    """Note the changes for Horovod."""
    make_common(port, is_wrapped=False)
    statement, model = wrap_place(port)
    optimizer = port.training.optimizers[-1]
    last = later(port, statement, optimizer.call)
    name = optimizer.name
    named = f"named_parameters={model}.named_parameters()"
    # No `broadcast_optimizer_state`: the state of a new optimizer is empty, and to fill it Horovod
    # takes a step, which weight decay turns into other weights.
    lines = [
        f"hvd.broadcast_parameters({model}.state_dict(), root_rank=0)",
        f"{name} = hvd.DistributedOptimizer({name}, {named})",
    ]
    if last is not port.script.statement(optimizer.call) and _loads(port):
        lines.insert(1, f"loaded_state = {name}.state_dict()  # Horovod's optimizer begins without")
        lines.append(f"{name}.load_state_dict(loaded_state)")
    for line in lines:
        port.edits.insert_after(last, line)
    _zeros(port)
    port.notes.append("start it with mpirun, horovodrun or srun --mpi; torchrun cannot")


def _loads(port: Port) -> bool:
    """Tell whether the script loads the state of its optimizer."""
    return any(
        isinstance(call.func, ast.Attribute) and port.training.optimizer.holds(call.func.value)
        for call in port.script.methods("load_state_dict")
    )


def _zeros(port: Port) -> None:
    """Horovod's `zero_grad` takes no argument; it sets gradients to None, as PyTorch's does."""
    for call in port.script.methods("zero_grad"):
        func = call.func
        if isinstance(func, ast.Attribute) and port.training.optimizer.holds(func.value):
            if call.args or call.keywords:
                port.edits.change(
                    call, lambda text: f"{text[: text.rindex('zero_grad')]}zero_grad()"
                )
