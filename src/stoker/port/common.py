"""The changes that every target shares: loaders, numbers, files, prints, devices, seeds."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

from stoker.port.edits import Edits, with_keyword
from stoker.port.evaluation import find_divisible
from stoker.port.figures import read_figures
from stoker.port.script import Function, Script, text_of
from stoker.port.training import Training

# Methods that the wrapper passes on to the model.
_PASSED = frozenset(
    [
        "train",
        "eval",
        "parameters",
        "named_parameters",
        "zero_grad",
        "to",
        "cuda",
        "cpu",
        "requires_grad_",
        "modules",
        "named_modules",
        "children",
        "buffers",
        "named_buffers",
        "half",
        "float",
        "bfloat16",
        "double",
        "training",
        "apply",
        "no_sync",
        "module",
    ]
)
# Functions that want the model itself, not its wrapper.
_BARE = ("deepcopy", "print", "isinstance", "summary", "len", "str", "type")
_WRITERS = ("SummaryWriter", "wandb.init", "neptune.init_run", "comet_ml.Experiment")
_FETCHERS = ("from_pretrained", "load_state_dict_from_url", "hub.load", "load_dataset",
             "urlretrieve", "download_url", "snapshot_download", "hf_hub_download")  # fmt: skip
# Statements of their own that write files.
_FILES = ("np.save", "numpy.save", "numpy.savez", "savefig", "to_csv", "to_json", "write_text",
          "write_bytes", "mkdir", "os.remove", "shutil.rmtree", "shutil.copy", "shutil.copyfile",
          "os.rename", "os.replace", "save_pretrained", "to_parquet", "to_pickle", "unlink")  # fmt: skip
_RANDOM = ("Dropout", "Random", "rand", "randn", "randn_like", "rand_like", "dropout", "randint",
           "ColorJitter", "AutoAugment", "TrivialAugmentWide", "normal_", "bernoulli", "random",
           "multinomial", "normal", "uniform")  # fmt: skip


@dataclass
class Port:
    """A port in the making: the script as read, the changes, what they need, what to say."""

    script: Script
    training: Training
    edits: Edits
    helpers: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)

    def need(self, helper: str) -> None:
        """Have a helper in the ported script."""
        self.helpers.add(helper)


def make_common(port: Port, *, is_wrapped: bool) -> None:
    """Note the changes that all targets have in common."""
    _loaders(port)
    _numbers(port)
    _files(port)
    _talk(port)
    _downloads(port)
    _devices(port)
    if is_wrapped:
        _attributes(port)
    _evaluations(port, can_divide=is_wrapped)
    _averages(port)
    _seeds(port)
    _notes(port)


def trained_loaders(training: Training) -> list[ast.Call]:
    """Return the calls that make the loaders of training."""
    return [each.call for each in training.loaders if each.is_shared]


def _loaders(port: Port) -> None:
    port.need("loader")
    for call in trained_loaders(port.training):
        port.edits.change(call.func, lambda _: "distributed_loader")
    lines = sorted(call.lineno for call in trained_loaders(port.training))
    where = ", ".join(map(str, lines))
    port.notes.append(
        f"line {where}: all ranks together take the batch size of the script: each takes its share, "
        "batch_size // WORLD_SIZE; a batch size that cannot be divided stops the run at its start"
    )


def _numbers(port: Port) -> None:
    """What is shown or kept of a training batch is that of all ranks."""
    found = read_figures(port.training)
    for node, helper, template in found.wraps:
        if helper:
            port.need(helper)
        port.edits.wrap(node, template)
    for loss in found.sums:
        port.edits.wrap(loss, "({} * WORLD_SIZE)")
        port.notes.append(
            f"line {loss.lineno}: the loss is a sum over the batch, and gradients are averaged over "
            "ranks: times WORLD_SIZE they are those of the whole sum"
        )


def _evaluations(port: Port, *, can_divide: bool) -> None:
    """Evaluations that only add up are divided; others are done whole by each rank."""
    training = port.training
    divided = dict(find_divisible(training)) if can_divide else {}
    for loop, sums in divided.items():
        port.need("batches")
        port.need("sum")
        port.edits.wrap(loop.iter, "share_of_batches({})")
        for name in sums:
            port.edits.insert_after(loop, f"{name} = sum_over_ranks({name})")
    whole = [
        node.lineno
        for node in port.script.nodes
        if isinstance(node, ast.For) and node not in divided and node not in training.loops
        and any(not each.is_shared and each.flow.holds(part)
                for each in training.loaders for part in _parts(node.iter))
    ]  # fmt: skip
    if divided:
        where = ", ".join(str(each.lineno) for each in divided)
        port.notes.append(f"line {where}: the ranks share the batches, and sum up what they find")
    if whole:
        where = ", ".join(map(str, sorted(whole)))
        port.notes.append(
            f"line {where}: each rank goes through all of the batches, as one process does: this does "
            "not become faster with more ranks"
        )


def _parts(node: ast.expr) -> list[ast.expr]:
    return [
        each
        for each in ast.walk(node)
        if isinstance(each, ast.Name | ast.Attribute | ast.Subscript)
    ]


def _files(port: Port) -> None:
    """Files are written by the first rank."""
    script, edits = port.script, port.edits
    for call in script.calls("torch.save"):
        port.need("save")
        edits.change(call.func, lambda _: "save_on_main")
        if call.args and port.training.model.holds(call.args[0]):
            edits.wrap(call.args[0], "unwrap({})")
            port.need("unwrap")
    _loads(port)
    for call in [*script.calls("open"), *script.methods("open")]:
        mode = next((each.value for each in call.keywords if each.arg == "mode"), None)
        place = 1 if isinstance(call.func, ast.Name) else 0
        if mode is None and len(call.args) > place:
            mode = call.args[place]
        if (
            isinstance(mode, ast.Constant)
            and isinstance(mode.value, str)
            and set(mode.value) & set("wax")
        ):
            if isinstance(call.func, ast.Name) and call.args:
                edits.wrap(call.args[0], "({}) if RANK == 0 else os.devnull")
            elif isinstance(call.func, ast.Attribute):
                edits.wrap(call, "({} if RANK == 0 else open(os.devnull, 'w'))")
    for node in script.nodes:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            name = text_of(node.value.func)
            is_dir = name.endswith(("makedirs", "mkdir"))
            if any(name == end or name.endswith(f".{end}") for end in _FILES) or is_dir:
                if not (is_dir and "exist_ok=True" in text_of(node)) and not _meets(port, node):
                    edits.guard(node, "if RANK == 0:")
                    _wait_first(port, node, name)


def _loads(port: Port) -> None:
    """A checkpoint that the first rank may still be writing is waited for."""
    script = port.script
    if not any(script.calls("torch.save")):
        return
    homes = {script.scope(call) for call in script.methods("load_state_dict")}
    for call in script.calls("torch.load"):
        if script.scope(call) in homes:
            port.need("load")
            port.edits.change(call.func, lambda _: "load_when_saved")


def _wait_first(port: Port, node: ast.stmt, name: str) -> None:
    """Nothing is taken away while another rank may still read it."""
    is_taken = name.rsplit(".", maxsplit=1)[-1] in (
        "remove",
        "rmtree",
        "rename",
        "replace",
        "unlink",
    )
    above = [each for each in port.script.above(node) if isinstance(each, ast.If)]
    if is_taken and not any("exists" in text_of(each.test) for each in above):
        port.need("wait")
        port.edits.insert_before(node, "wait_for_ranks()")


def _meets(port: Port, node: ast.stmt) -> bool:
    """Whether a statement reads a number over ranks: then every rank must run it."""
    wraps = read_figures(port.training).wraps
    return any(port.script.within(each, node) for each, _, _ in wraps)


def _talk(port: Port) -> None:
    """The first rank prints, shows progress and logs."""
    script = port.script
    if any(script.calls("print")):
        port.need("print")
    for call in script.calls("tqdm", "trange", "tqdm.auto.tqdm", "tqdm.tqdm"):
        if isinstance(call.func, ast.Name | ast.Attribute):
            port.edits.change(call, lambda text: with_keyword(text, "disable=RANK != 0"))
    for call in script.calls("sys.stdout.write", "sys.stderr.write"):
        if isinstance(call.func, ast.Attribute):
            port.need("silent")
            port.edits.wrap(call.func.value, "({} if RANK == 0 else Silent())")
    for call in script.calls(*_WRITERS):
        port.need("silent")
        port.edits.wrap(call, "({} if RANK == 0 else Silent())")
        if script.dotted(call.func) == "wandb.init":
            for each in script.calls("wandb.log", "wandb.finish", "wandb.watch"):
                port.edits.change(
                    each.func, lambda text: f"({text} if RANK == 0 else Silent().log)"
                )


def _downloads(port: Port) -> None:
    """What is downloaded is downloaded once."""
    script = port.script
    for node in script.nodes:
        if not isinstance(node, ast.Call):
            continue
        name = script.dotted(node.func)
        is_download = any(
            each.arg == "download"
            and not (isinstance(each.value, ast.Constant) and not each.value.value)
            for each in node.keywords
        )
        is_fetch = any(name == end or name.endswith(f".{end}") for end in _FETCHERS)
        is_weights = name.startswith("torchvision.models") and any(
            each.arg in ("weights", "pretrained") for each in node.keywords
        )
        if is_download or is_fetch or is_weights:
            statement = script.statement(node)
            if isinstance(statement, ast.Assign | ast.AnnAssign | ast.Expr | ast.Return):
                port.need("first")
                port.edits.guard(statement, "with main_first():")


def _devices(port: Port) -> None:
    """`cuda` is the GPU of this rank; a number would be the same GPU for all."""
    script, edits = port.script, port.edits
    for node in script.nodes:
        if isinstance(node, ast.JoinedStr):
            first = node.values[0] if node.values else None
            if isinstance(first, ast.Constant) and str(first.value).startswith("cuda:"):
                edits.change(node, lambda _: '"cuda"')
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            if node.value.startswith("cuda:") and not isinstance(
                script.parents[node], ast.JoinedStr
            ):
                edits.change(node, lambda text: text[0] + "cuda" + text[0])
    for call in script.methods("cuda"):
        if call.args and isinstance(call.func, ast.Attribute):
            edits.change(call, lambda text: text[: text.rindex("(")] + "()")
    for call in script.calls("torch.cuda.set_device"):
        if call.args:
            edits.change(call.args[0], lambda _: "LOCAL_RANK % torch.cuda.device_count()")
    for call in script.calls("torch.device"):
        if len(call.args) == 2:
            edits.change(call, lambda _: 'torch.device("cuda")')


def _attributes(port: Port) -> None:
    """What the wrapper does not pass on is asked of the model itself."""
    script, training = port.script, port.training
    wrapped = training.owners()[0][1][-1].lineno
    owner = training.owners()[0][0]
    regions = training.regions()
    for node in script.nodes:
        if isinstance(node, ast.Attribute) and node.attr not in _PASSED:
            is_before = script.scope(node) is owner and node.lineno <= wrapped
            if training.model.holds(node.value) and not is_before and _is_model(port, node.value):
                port.need("unwrap")
                port.edits.wrap(node.value, "unwrap({})")
        elif isinstance(node, ast.Subscript) and _is_model(port, node.value):
            is_before = script.scope(node) is owner and node.lineno <= wrapped
            if training.model.holds(node.value) and not is_before:
                port.need("unwrap")
                port.edits.wrap(node.value, "unwrap({})")
        elif isinstance(node, ast.Call):
            if training.model.holds(node.func) and _is_model(port, node.func):
                if not any(script.within(node, each) for each in regions) and not _is_step(
                    port, node
                ):
                    port.need("unwrap")
                    port.edits.wrap(node.func, "unwrap({})")
            for each in node.args:
                if text_of(node.func).rsplit(".", 1)[-1] in _BARE and training.model.holds(each):
                    port.need("unwrap")
                    port.edits.wrap(each, "unwrap({})")


def _averages(port: Port) -> None:
    """Where the model may have BatchNorm, all ranks evaluate it with the same running averages."""
    script = port.script
    libraries = {full.split(".")[0] for full in script.imports.values()}
    if "BatchNorm" not in script.text and not libraries & {"torchvision", "timm", "monai"}:
        return
    for call in script.methods("eval"):
        statement = script.statement(call)
        if isinstance(statement, ast.Expr) and isinstance(call.func, ast.Attribute):
            if port.training.model.holds(call.func.value):
                port.need("buffers")
                port.edits.insert_after(statement, f"share_buffers({text_of(call.func.value)})")


def _is_model(port: Port, node: ast.expr) -> bool:
    """Whether an expression is the model by name, not the call that makes it."""
    if isinstance(node, ast.Attribute):
        base = node.value
        return (
            isinstance(base, ast.Name | ast.Attribute) and text_of(base) not in port.script.imports
        )
    return isinstance(node, ast.Name)


def _is_step(port: Port, node: ast.Call) -> bool:
    """Whether this forward pass is one that `backward` follows: in a function for it."""
    scope = port.script.scope(node)
    if _loops_over(port, node):  # an evaluation, though it may be called from within a step
        return False
    if scope in [port.script.scope(each) for each in port.training.backwards]:
        return not isinstance(scope, ast.Module)
    losses = {text_of(call.func) for region in port.training.regions()
              for call in ast.walk(region) if isinstance(call, ast.Call)}  # fmt: skip
    name = getattr(scope, "name", "")
    return any(each == name or each.endswith(f".{name}") for each in losses)


def _loops_over(port: Port, node: ast.AST) -> bool:
    for each in port.script.above(node):
        if isinstance(each, ast.For) and any(not loader.is_shared and loader.flow.holds(part)
               for loader in port.training.loaders for part in _parts(each.iter)):  # fmt: skip
            return True
    return False


def _seeds(port: Port) -> None:
    """Where training draws random numbers, each rank draws its own."""
    script = port.script
    names = {n.attr if isinstance(n, ast.Attribute) else n.id for n in script.nodes
             if isinstance(n, ast.Attribute | ast.Name)}  # fmt: skip
    uses = {each for each in names if each.startswith(_RANDOM) and each != "random_split"}
    if not uses:
        return
    first = _outermost(port)
    if first is None or _makes_data(port, first):
        port.notes.append(
            "all ranks draw the same random numbers (dropout, augmentation): data is made or split "
            "inside of the training loop, and must be the same on all"
        )
        return
    text = (
        "if RANK > 0:  # other random numbers than on the first rank\n"
        "    torch.manual_seed(torch.initial_seed() + RANK)\n"
    )
    port.edits.insert_before(first, text)
    port.notes.append(
        "each rank draws its own random numbers from the first step on (dropout, augmentation): "
        "these differ from one process, on purpose"
    )


def _makes_data(port: Port, loop: ast.stmt) -> bool:
    """Whether loaders or splits are made in a loop, or in functions that it calls."""
    script = port.script
    made = [each.call for each in port.training.loaders]
    made += script.calls("random_split", "randperm", "permutation", "shuffle", "train_test_split")
    todo: list[ast.AST] = list(made)
    seen: set[ast.AST] = set()
    for node in todo:  # grows while it is walked
        if script.within(node, loop):
            return True
        scope = script.scope(node)
        if isinstance(scope, Function) and scope not in seen:
            seen.add(scope)
            todo += script.callers(scope)
    return False


def _outermost(port: Port) -> ast.stmt | None:
    """Return the training loop that is in no other: data may be made up to it."""
    script, training = port.script, port.training
    bindings = training.owners()[0][1]
    for loop in training.loops:
        scope = script.scope(loop)
        calls = script.callers(scope) if isinstance(scope, Function) else []
        around = [*script.above(loop), *(up for call in calls for up in script.above(call))]
        outer = [each for each in around if each in training.loops]
        if not any(not script.within(bindings[-1], each) for each in outer):
            if not script.within(bindings[-1], loop):
                return loop
    return None


def first_training(port: Port) -> ast.stmt | None:
    """Return the statement, beside where the model is made, in which training begins."""
    script, training = port.script, port.training
    scope, bindings = training.owners()[0]
    inside = [each for each in training.starts(scope) if not script.within(bindings[-1], each)]
    inside = [each for each in inside if getattr(each, "lineno", 0) > bindings[-1].lineno]
    if not inside:
        return None
    nearest = min(inside, key=lambda each: (getattr(each, "lineno", 0), 0))
    return common_block(script, bindings[-1], nearest)[1]


def common_block(script: Script, early: ast.AST, late: ast.AST) -> tuple[ast.stmt, ast.stmt]:
    """Return the two statements of one block that two nodes are in."""
    above_late = [late, *script.above(late)]
    node: ast.AST = script.statement(early)
    while True:
        if isinstance(node, ast.stmt):
            block = script.block(node)
            for each in above_late:
                if isinstance(each, ast.stmt) and each in block:
                    return node, each
        node = script.parents[node]


def _notes(port: Port) -> None:
    names = {n.attr if isinstance(n, ast.Attribute) else n.id for n in port.script.nodes
             if isinstance(n, ast.Attribute | ast.Name)}  # fmt: skip
    if any(each.startswith("BatchNorm") for each in names):
        port.notes.append(
            "BatchNorm takes its averages over the share of one rank: the losses differ a little from "
            "those of one process; torch.nn.SyncBatchNorm.convert_sync_batchnorm(model) would not (GPUs)"
        )
    for call in trained_loaders(port.training):
        if any(each.arg == "generator" for each in call.keywords):
            port.notes.append(
                f"line {call.lineno}: with a generator of its own the loader draws another order of the "
                "samples than in one process"
            )
