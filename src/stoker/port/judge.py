"""What cannot be ported safely: each refusal with its line and its reason."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from stoker.port.figures import read_figures
from stoker.port.prelude import NAMES
from stoker.port.script import Function, pairs, text_of
from stoker.port.training import Training


@dataclass(frozen=True)
class Refusal:
    """One reason why a script is not ported."""

    line: int
    what: str
    why: str
    fix: str


Judge = Callable[[Training], Iterator[Refusal]]


def judge(training: Training, target: str) -> list[Refusal]:
    """Return every reason not to port this script to this target, in the order of lines."""
    whole = next(_distributed(training), None)
    if whole is not None:
        return [whole]  # what else is wrong with it matters to nobody
    found = [each for rule in _RULES for each in rule(training)]
    found += _targets(training, target)
    return sorted(found, key=lambda each: each.line)


def _distributed(training: Training) -> Iterator[Refusal]:
    """What runs on several GPUs as it is."""
    script = training.script
    for call in script.calls("multiprocessing.spawn", "multiprocessing.start_processes"):
        yield Refusal(call.lineno, f"`{text_of(call.func)}`: the script is distributed already",
                      "it starts its processes itself", "stoker run runs it as it is")  # fmt: skip
    for call in script.calls("Trainer", "Fabric", "pl.Trainer"):
        name = script.dotted(call.func)
        if name.split(".")[0] in ("lightning", "pytorch_lightning", "transformers"):
            yield Refusal(call.lineno, f"`{text_of(call.func)}` distributes by itself",
                          "its own options choose the processes",
                          "stoker run --procs N runs it as it is")  # fmt: skip
    ends = ("init_process_group", "DistributedDataParallel", "FullyShardedDataParallel", "fully_shard",
            "Accelerator", "deepspeed.initialize", "hvd.init", "horovod.torch.init",
            "DistributedSampler")  # fmt: skip
    for call in script.calls(*ends):
        yield Refusal(call.lineno, f"`{text_of(call.func)}`: the script is distributed already",
                      "only scripts of one process are ported",
                      "stoker run --procs N runs it as it is")  # fmt: skip


def _data_parallel(training: Training) -> Iterator[Refusal]:
    for call in training.script.calls("DataParallel"):
        yield Refusal(call.lineno, "`DataParallel` splits each batch over the GPUs of one process",
                      "one process a GPU takes its place, and both together would split twice",
                      "remove DataParallel (and `.module`), then port")  # fmt: skip


def _missing(training: Training) -> Iterator[Refusal]:
    if not training.backwards:
        yield Refusal(1, "no `backward()` is called", "no training loop in PyTorch was found in this file",
                      "name the file that has the training loop")  # fmt: skip
        return
    if not training.optimizers:
        yield Refusal(training.backwards[0].lineno, "no optimizer was found",
                      "what it is given says which model is trained",
                      "make the optimizer in this file, from `model.parameters()`")  # fmt: skip
        return
    if not any(each.roots for each in training.optimizers):
        yield Refusal(training.optimizers[0].call.lineno, "the model of the optimizer was not found",
                      "none of its arguments is `model.parameters()`",
                      "give it `model.parameters()`")  # fmt: skip
    elif not training.owners():
        yield Refusal(training.optimizers[0].call.lineno, "it was not found where the model is made",
                      "there is no assignment to wrap it after",
                      "assign the model to a name before the optimizer is made")  # fmt: skip
    if not any(each.trains for each in training.loaders) and not training.nexts:
        line = training.loops[0].lineno if training.loops else training.backwards[0].lineno
        yield Refusal(line, "the training loop takes no batches from a DataLoader of this file",
                      "the batches could not be divided among the ranks: each would do all the work",
                      "make a torch.utils.data.DataLoader in this file and loop over it")  # fmt: skip


def _several(training: Training) -> Iterator[Refusal]:
    names: dict[str, int] = {}
    for each in training.optimizers:
        names.setdefault(each.name.split(".")[-1], each.call.lineno)
    if len(names) > 1:
        yield Refusal(max(names.values()), f"several optimizers: {', '.join(names)}",
                      "with several models or optimizers the order of their gradients must be known",
                      "port it by hand: wrap each model")  # fmt: skip
    roots = {text: call for each in training.optimizers for text, call in each.roots.items()}
    if len({text.split(".")[-1] for text in roots}) > 1:
        last = max(roots.values(), key=lambda each: each.lineno)
        yield Refusal(last.lineno, f"several models: {', '.join(roots)}",
                      "one wrapper sees the forward pass of one model",
                      "put them into one nn.Module with one forward, or port by hand")  # fmt: skip
    elif "self" in roots:
        yield Refusal(roots["self"].lineno, "the model makes its own optimizer",
                      "the wrapper would have to stand inside of what it wraps",
                      "make the optimizer outside of the model's class")  # fmt: skip
    elif training.made_again() is not None:
        line = getattr(training.made_again(), "lineno", 1)
        yield Refusal(line, "the model is made again after a training",
                      "each of them would have to be wrapped",
                      "train one model in a function, and call it for each")  # fmt: skip
    elif len(training.owners()) > 1:
        line = training.owners()[-1][1][0].lineno
        yield Refusal(line, "the model is made in several places",
                      "it cannot be told which of them is trained",
                      "make it in one function")  # fmt: skip


def _loaders(training: Training) -> Iterator[Refusal]:
    script = training.script
    iterable = {
        name
        for name, node in script.classes.items()
        if any(script.dotted(base).split(".")[-1] == "IterableDataset" for base in node.bases)
    }
    for node in script.nodes:
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in iterable
        ):
            yield Refusal(node.lineno, f"`{node.func.id}` is an IterableDataset",
                          "it has no length and no index: each rank would read all of it",
                          "divide it by rank inside `__iter__`, or give it `__getitem__`")  # fmt: skip
    trained = [each for each in training.loaders if each.trains]
    trained += [loader for loader, _ in training.nexts]
    for loader in {id(each): each for each in trained}.values():
        for keyword in loader.call.keywords:
            is_none = isinstance(keyword.value, ast.Constant) and keyword.value.value is None
            if keyword.arg in ("sampler", "batch_sampler") and not is_none:
                yield Refusal(keyword.value.lineno, f"the training loader has a `{keyword.arg}` of its own",
                              "it cannot be told how to divide its order among the ranks",
                              "a sampler that takes every WORLD_SIZE-th index from RANK on")  # fmt: skip
        if len(loader.call.args) > 3:
            yield Refusal(loader.call.lineno, "the training loader has a sampler by position",
                          "it cannot be told how to divide its order among the ranks",
                          "name the arguments of DataLoader")  # fmt: skip


def _comprehensions(training: Training) -> Iterator[Refusal]:
    for node in training.script.nodes:
        if isinstance(node, ast.comprehension):
            for loader in training.loaders:
                if loader.is_shared and loader.flow.holds(node.iter):
                    yield Refusal(node.iter.lineno, "a comprehension runs over the training loader",
                                  "its numbers would be those of one rank's share",
                                  "write it as a loop")  # fmt: skip


def _devices(training: Training) -> Iterator[Refusal]:
    script = training.script
    seen: dict[str, int] = {}
    for node in script.nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if node.value.startswith("cuda:"):
                seen.setdefault(node.value, node.lineno)
        if isinstance(node, ast.Constant) and node.value == "CUDA_VISIBLE_DEVICES":
            parent = script.parents[node]
            if isinstance(parent, ast.Subscript) and isinstance(parent.ctx, ast.Store):
                yield Refusal(node.lineno, "the script sets CUDA_VISIBLE_DEVICES",
                              "every rank would see the same GPU",
                              "delete the line; the launcher gives each rank its GPU")  # fmt: skip
    if len(seen) > 1:
        yield Refusal(max(seen.values()), f"several devices: {', '.join(seen)}",
                      "the model is spread over GPUs by hand",
                      "port it by hand")  # fmt: skip


def _gradients(training: Training) -> Iterator[Refusal]:
    script = training.script
    for call in script.calls("torch.autograd.grad", "torch.autograd.backward", "torch.optim.LBFGS"):
        yield Refusal(call.lineno, f"`{text_of(call.func)}`",
                      "its gradients do not pass through the wrapper, which averages them in `backward()`",
                      "port it by hand")  # fmt: skip
    for call in script.methods("backward"):
        if any(each.arg in ("create_graph", "retain_graph") for each in call.keywords):
            yield Refusal(call.lineno, "`backward` keeps its graph",
                          "a second pass over it is not averaged over the ranks rightly",
                          "port it by hand")  # fmt: skip


def _numbers(training: Training) -> Iterator[Refusal]:
    """Numbers of a share that cannot be made those of the batch."""
    found = read_figures(training)
    for line, text in found.kept:
        if any(each.lineno <= line <= (each.end_lineno or 0) for each in training.measured):
            yield Refusal(line, f"an evaluation keeps `{text}`",
                          "its loop may be given the loader of the training, of which each rank has a share",
                          "make its loader by a DataLoader call of its own")  # fmt: skip
            continue
        yield Refusal(line, f"training keeps `{text}`",
                      "each rank has its own samples only, and this is no mean, sum or size of them",
                      "keep a mean or a sum over the batch, or work it out in the validation")  # fmt: skip
    for line, text in found.branches:
        yield Refusal(line, f"`{text}` decides how training goes on",
                      "it depends on the samples of one rank: the ranks would part and wait for each other",
                      "decide by a mean or a sum over the batch")  # fmt: skip


def _forwards(training: Training) -> Iterator[Refusal]:
    """The forward pass must go through `model(…)`: a method of it is not seen by the wrapper."""
    script = training.script
    for region in training.regions():
        for node in ast.walk(region):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            owner = script.parents.get(next(iter(script.functions.get(node.func.attr, [])), region))
            if isinstance(owner, ast.ClassDef) and training.model.holds(node.func.value):
                if node.func.attr not in ("train", "eval") and not _is_quiet(node.func.attr):
                    yield Refusal(node.lineno, f"training calls `{text_of(node.func)}`",
                                  "the wrapper sees `model(…)` only; gradients of other methods are not averaged",
                                  "do this work in `forward`")  # fmt: skip


def _is_quiet(name: str) -> bool:
    return name.startswith(("init_", "get_", "count_", "num_"))


def _accumulation(training: Training) -> Iterator[Refusal]:
    """A step that is taken now and then must say when in a way that `no_sync` can repeat."""
    from stoker.port.accumulation import find_accumulation

    found = find_accumulation(training)
    if found is not None and not found.is_clear:
        yield Refusal(found.line, "gradients are accumulated in a way that was not recognised",
                      found.reason,
                      "for i, batch in enumerate(loader): … if (i + 1) % k == 0: optimizer.step()")  # fmt: skip


def _names(training: Training) -> Iterator[Refusal]:
    for node in training.script.nodes:
        name = getattr(node, "id", None) or getattr(node, "name", None)
        is_bound = isinstance(getattr(node, "ctx", ast.Store()), ast.Store)
        if isinstance(node, ast.Name | Function | ast.ClassDef) and name in NAMES and is_bound:
            yield Refusal(node.lineno, f"the script uses the name `{name}`",
                          "the ported script needs it", "rename it")  # fmt: skip


def _targets(training: Training, target: str) -> Iterator[Refusal]:
    script = training.script
    scalers = list(script.calls("GradScaler"))
    clips = list(script.calls("clip_grad_norm_", "clip_grad_value_"))
    states = [
        call for call in script.methods("state_dict")
        if isinstance(call.func, ast.Attribute) and training.optimizer.holds(call.func.value)
    ]  # fmt: skip
    if target in ("deepspeed", "horovod", "accelerate", "fsdp"):
        for call in scalers[:1]:
            yield Refusal(call.lineno, f"`GradScaler` with {target}",
                          "it scales the loss by itself" if target != "horovod" else
                          "gradients must be unscaled after they are averaged",
                          "use bfloat16 autocast without a scaler, or --to ddp")  # fmt: skip
    if target in ("deepspeed", "horovod"):
        for call in clips[:1]:
            yield Refusal(call.lineno, f"gradients are clipped by hand with {target}",
                          "they are averaged later than this line",
                          "`gradient_clipping` of its configuration" if target == "deepspeed"
                          else "--to ddp")  # fmt: skip
    yield from _places(training, target)
    yield from _formats(training, target)
    if target == "fsdp" and training.optimizers and training.owners():
        yield from _shares(training)
    if target in ("deepspeed", "fsdp"):
        for call in states[:1]:
            yield Refusal(call.lineno, f"the optimizer's state is saved with {target}",
                          "each rank holds a part of it: the first rank's file would not be whole",
                          "its own checkpoints, or --to ddp")  # fmt: skip


def _places(training: Training, target: str) -> Iterator[Refusal]:
    """Some targets need the model and the optimizer side by side, and in the right order."""
    from stoker.port.accumulation import find_accumulation

    if not training.optimizers or not training.owners():
        return
    script = training.script
    scope = training.owners()[0][0]
    call = training.optimizers[-1].call
    if target in ("deepspeed", "horovod") and script.scope(call) is not scope:
        yield Refusal(call.lineno, "the optimizer is made in another function than the model",
                      f"{target} takes both together",
                      "make both in one function, or --to ddp")  # fmt: skip
    found = find_accumulation(training)
    if found is not None and found.is_clear and target in ("deepspeed", "horovod"):
        yield Refusal(found.line, f"gradients are accumulated, with {target}",
                      f"{target} counts the batches of a step by itself",
                      "--to ddp or --to accelerate")  # fmt: skip


def _shares(training: Training) -> Iterator[Refusal]:
    """What FSDP cannot do with parameters of which each rank holds a share."""
    script = training.script
    call = training.optimizers[-1].call
    if not _is_made_later(training, call):
        yield Refusal(call.lineno, "the optimizer is made before the model is whole",
                      "with FSDP it must see the shares of the parameters",
                      "make the optimizer after the model is on its device")  # fmt: skip
    for each in script.calls("next"):
        inside = each.args[0] if each.args else None
        if isinstance(inside, ast.Call) and text_of(inside.func).endswith(".parameters"):
            parent = script.parents[each]
            if not (isinstance(parent, ast.Attribute) and parent.attr in ("device", "dtype")):
                yield Refusal(each.lineno, f"`{text_of(each)}` with fsdp",
                              "what is made from a parameter is spread over the ranks as that is",
                              "make it from the device and the dtype")  # fmt: skip
    for each in script.calls("deepcopy", "torch.save"):
        if each.args and training.model.holds(each.args[0]):
            yield Refusal(each.lineno, "the whole model is copied or saved",
                          "each rank holds a share of it",
                          "save `model.state_dict()` instead")  # fmt: skip


def _formats(training: Training, target: str) -> Iterator[Refusal]:
    """`channels_last` parameters do not lie in memory in their own order."""
    whys = {"fsdp": "FSDP divides contiguous parameters only",
            "horovod": "Horovod sends contiguous parameters only"}  # fmt: skip
    for call in training.script.methods("to") if target in whys else ():
        if any(keyword.arg == "memory_format" for keyword in call.keywords):
            if _is_of_model(training, call):
                yield Refusal(call.lineno, f"the model is in another memory format, with {target}",
                              whys[target], "leave the model's format alone, or --to ddp")  # fmt: skip


def _is_of_model(training: Training, call: ast.Call) -> bool:
    """Whether a method is called on the model, be it in the line that makes it."""
    model, statement = training.model, training.script.statement(call)
    is_named = isinstance(call.func, ast.Attribute) and model.holds(call.func.value)
    return is_named or any(
        model.holds(target) and value is call for target, value, _ in pairs(statement)
    )


def _is_made_later(training: Training, call: ast.Call) -> bool:
    """Whether the optimizer is made after the model is wrapped, perhaps in a function."""
    script = training.script
    scope, bindings = training.owners()[0]
    home = script.scope(call)
    if home is scope:
        return call.lineno > bindings[-1].lineno
    calls = script.callers(home) if isinstance(home, Function) else []
    return bool(calls) and all(
        script.scope(each) is scope and each.lineno > bindings[-1].lineno for each in calls
    )


def _moves(training: Training) -> Iterator[Refusal]:
    """The model must be on its device where it is wrapped."""
    if not training.owners():
        return
    script = training.script
    scope = training.owners()[0][0]
    for call in script.methods("to", "cuda"):
        if isinstance(call.func, ast.Attribute) and training.model.holds(call.func.value):
            home = script.scope(call)
            is_made = any(script.within(call, each) for each in
                          (value for f in [home] if isinstance(f, Function)
                           for value in script.returns(f)))  # fmt: skip
            if home is not scope and not is_made and home in training.trainers:
                yield Refusal(call.lineno, "the model is moved to its device after it is made elsewhere",
                              "it is wrapped where it is made, and must be on its device there",
                              "move it in the function that makes it")  # fmt: skip


_RULES: tuple[Judge, ...] = (
    _data_parallel, _missing, _several, _loaders, _comprehensions, _devices, _gradients, _numbers, _forwards, _accumulation, _names,
    _moves,
)  # fmt: skip
