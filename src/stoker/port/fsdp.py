"""To FSDP2: each rank holds a share of the parameters, put together layer by layer."""

from __future__ import annotations

import ast
from functools import partial

from stoker.port.common import Port, make_common
from stoker.port.ddp import wrap_place
from stoker.port.script import text_of

IMPORTS = (
    "from torch.distributed.device_mesh import init_device_mesh",
    "from torch.distributed.fsdp import fully_shard",
)


def rewrite(port: Port) -> None:
    """Note the changes for FSDP2."""
    make_common(port, is_wrapped=False)
    port.need("shard")
    statement, name = wrap_place(port)
    port.edits.insert_after(statement, f"shard_model({name})")
    _states(port, statement)
    port.notes.append("checkpoints hold the whole model, put together on the first rank")


def _states(port: Port, wrap: ast.stmt) -> None:
    """The state of the model is that of all ranks."""
    script, model = port.script, port.training.model
    for call in script.methods("state_dict", "load_state_dict"):
        func = call.func
        assert isinstance(func, ast.Attribute)
        is_before = script.scope(call) is script.scope(wrap) and call.lineno <= wrap.lineno
        if not model.holds(func.value) or is_before:
            continue
        port.need("state")
        name = text_of(func.value)
        new = f"full_state({name}" if func.attr == "state_dict" else f"load_full_state({name}, "
        port.edits.change(call, partial(_replace_head, f".{func.attr}(", new))


def _replace_head(old: str, new: str, text: str) -> str:
    return new + text[text.index(old) + len(old) :]
