"""To Accelerate: it wraps the model and the optimizer, and calls `backward`."""

from __future__ import annotations

from stoker.port.accumulation import find_accumulation
from stoker.port.common import Port, make_common
from stoker.port.ddp import forward_name, unused, wrap_place
from stoker.port.script import text_of

IMPORTS = ("from accelerate import Accelerator",)


def rewrite(port: Port) -> None:
    """Note the changes for Accelerate."""
    make_common(port, is_wrapped=True)
    port.need("accelerate")
    statement, name = wrap_place(port)
    port.edits.insert_after(statement, f"{name} = accelerator.prepare({name})")
    if unused(port, statement):
        port.need("accelerate-unused")
    change_backward(port, "accelerator.backward({})")
    found = find_accumulation(port.training)
    if found is not None and found.first and found.last and found.condition:
        when, model = text_of(found.condition), forward_name(port, found.first)
        header = f"with contextlib.nullcontext() if {when} else accelerator.no_sync({model}):"
        port.edits.enclose(found.first, found.last, header)


def add_start(start: str, *, has_unused: bool) -> str:
    """Return the start of the processes with an Accelerator at its end."""
    options = "cpu=not use_gpu"
    if has_unused:
        options += ", kwargs_handlers=[DistributedDataParallelKwargs(find_unused_parameters=True)]"
    head, _, tail = start.partition("    use_gpu = ")
    tail = tail.replace(
        "    atexit.register(torch",
        "    os.environ.update(\n"
        "        RANK=str(RANK), WORLD_SIZE=str(WORLD_SIZE), LOCAL_RANK=str(LOCAL_RANK)\n"
        "    )\n"
        f"    accelerator = Accelerator({options})\n"
        "    atexit.register(torch",
    )
    return f"{head}    global accelerator\n    use_gpu = {tail}"


def change_backward(port: Port, template: str) -> None:
    """Have another call take the place of `loss.backward()`."""
    for call in port.training.backwards:
        port.edits.change(
            call, lambda text: template.replace("{}", text[: text.rindex(".backward")].strip())
        )
