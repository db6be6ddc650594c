"""Read a training script without running it: which framework, how many loader workers.

Only the syntax tree is looked at. Modules that lie beside the script are read too,
because `train.py` is often ten lines that import the rest.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from stoker.plan.deepspeed import Config, find_told

# A project of many modules is read up to here; what decides is nearly always near the top.
MAX_FILES = 50
MAX_FILE_BYTES = 1_000_000

# What a call proves, strongest first: who owns the launch comes before what it wraps.
_LIGHTNING = (
    "lightning.Trainer",
    "lightning.pytorch.Trainer",
    "pytorch_lightning.Trainer",
    "lightning.Fabric",
    "lightning.fabric.Fabric",
    "lightning.pytorch.cli.LightningCLI",
    "pytorch_lightning.cli.LightningCLI",
)
_CALLS = (
    ("accelerate", ("accelerate.Accelerator",)),
    ("lightning", _LIGHTNING),
    ("deepspeed", ("deepspeed.initialize", "deepspeed.init_distributed")),
    ("horovod", ("horovod.torch.init", "horovod.tensorflow.init", "horovod.tensorflow.keras.init",
                 "horovod.keras.init", "horovod.init")),
    ("fsdp", ("torch.distributed.fsdp.fully_shard", "torch.distributed._composable.fsdp.fully_shard",
              "torch.distributed.fsdp.FullyShardedDataParallel")),
    ("ddp", ("torch.nn.parallel.DistributedDataParallel", "torch.distributed.init_process_group",
             "torch.nn.parallel.distributed.DistributedDataParallel",
             "torch.distributed.init_device_mesh", "torch.distributed.device_mesh.init_device_mesh",
             "torch.distributed._tensor.init_device_mesh",
             "torch.distributed._tensor.device_mesh.init_device_mesh",
             "transformers.Trainer", "transformers.Seq2SeqTrainer", "trl.SFTTrainer", "trl.DPOTrainer",
             "trl.GRPOTrainer", "trl.RewardTrainer", "stoker.context.init",
             "stoker.context.barrier")),
    ("parameter-server", ("tensorflow.distribute.ParameterServerStrategy",
                          "tensorflow.distribute.experimental.ParameterServerStrategy")),
    ("multiworker", ("tensorflow.distribute.MultiWorkerMirroredStrategy",
                     "tensorflow.distribute.experimental.MultiWorkerMirroredStrategy")),
    ("mirrored", ("tensorflow.distribute.MirroredStrategy",
                  "tensorflow.distribute.experimental.CentralStorageStrategy")),
    ("jax", ("jax.distributed.initialize",)),
)  # fmt: skip

# Calls that are given a configuration of DeepSpeed.
_DEEPSPEED = (
    "deepspeed.initialize",
    "transformers.TrainingArguments",
    "transformers.Seq2SeqTrainingArguments",
)

# Words of those who mean a GPU; in a comment they say nothing, elsewhere they are believed.
_GPU_WORDS = re.compile(r"cuda|gpu|device|accelerat|\b(xpu|hip|mps|npu|tpu)\b", re.IGNORECASE)

# Our own place of a rank; its `init` joins the ranks.
_CONTEXT = "stoker.context"

# A script that calls this must be started once a node, not once a GPU.
_SPAWN = "torch.multiprocessing.spawn"

# An import proves less than a call, and is used only when no call decided.
_IMPORTS = (
    ("deepspeed", "deepspeed"),
    ("horovod", "horovod"),
    ("mpi", "mpi4py"),
)

_LIBRARIES = {
    "torch": "pytorch",
    "lightning": "pytorch",
    "pytorch_lightning": "pytorch",
    "accelerate": "pytorch",
    "deepspeed": "pytorch",
    "transformers": "pytorch",
    "tensorflow": "tensorflow",
    "keras": "tensorflow",
    "jax": "jax",
}


@dataclass(frozen=True)
class Source:
    """What a training script says about how it wants to be run."""

    framework: str = "plain"
    evidence: str = "it was not read"
    library: str | None = None
    workers: int | None = None
    workers_known: bool = False
    has_loader: bool = False
    # Why the script trains on the CPU wherever it runs; None where it may use a GPU.
    stays_on_cpu: str | None = None
    resolves_slurm: bool = False
    uses_data_parallel: str | None = None
    # Where it calls what only a notebook has.
    asks_notebook: str | None = None
    spawns: bool = False
    was_read: bool = False
    # The options that it names, such as `--epochs`.
    options: frozenset[str] = frozenset()
    # Where a Keras model is compiled and fitted, and whether the script asks for Keras 2.
    keras_fit: str | None = None
    asks_keras_2: bool = False
    horovod_optimizer: bool = False
    central_storage: bool = False
    deepspeed_config: Config | None = None


@dataclass
class _Seen:
    calls: dict[str, str] = field(default_factory=dict)
    imports: dict[str, str] = field(default_factory=dict)
    workers: list[int | None] = field(default_factory=list)
    loader: bool = False
    # Whether anything is called after a GPU or a device, and which trainer is told to take the CPU.
    names_gpu: bool = False
    cpu_trainer: str | None = None
    asks_keras_2: bool = False
    options: set[str] = field(default_factory=set)
    deepspeed_config: Config | None = None


def read_source(path: Path, root: Path | None = None) -> Source:
    """Return what the script at `path` says; an unreadable one says nothing.

    Modules are looked for beside the script, or below `root` where it is one of a package.
    """
    seen = _Seen()
    roots = dict.fromkeys([path.parent, *([root] if root else [])])
    todo, done = [path], set[Path]()
    while todo and len(done) < MAX_FILES:
        file = todo.pop(0)
        tree = _parse(file)
        done.add(file)
        if tree is None:
            if file == path:
                return Source(evidence=f"`{path.name}` could not be read as Python from here")
            continue
        imports = _look(tree, file, seen)
        near = [each for folder in roots for each in _beside(folder, imports.names)]
        for up, name in imports.relative:
            near += _beside(file.parents[min(up, len(file.parents)) - 1], {name})
        todo.extend(dict.fromkeys(each for each in near if each not in done | set(todo)))
    return _conclude(seen)


def _parse(path: Path) -> ast.Module | None:
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            return None
        return ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _beside(folder: Path, names: set[str]) -> Iterator[Path]:
    """Yield the files beside the script that hold the modules it imports."""
    for name in sorted(names):
        inner = folder.joinpath(*name.split("."))
        for candidate in (inner.with_suffix(".py"), inner / "__init__.py"):
            if candidate.is_file():
                yield candidate


@dataclass
class _Imports:
    """What the names of one file stand for, and which modules it asks for."""

    aliases: dict[str, str] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)
    relative: set[tuple[int, str]] = field(default_factory=set)


def _look(tree: ast.Module, file: Path, seen: _Seen) -> _Imports:
    """Note the calls of one file, and return its imports."""
    imports = _Imports()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            _note_import(node, f"{file.name}:{node.lineno}", imports, seen)
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign) and _is_context(
            node.value, imports.aliases
        ):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            # `job`, or `self.job`.
            imports.aliases.update(dict.fromkeys(map(ast.unparse, targets), _CONTEXT))
    for node in ast.walk(tree):
        seen.names_gpu = seen.names_gpu or _names_gpu(node)
        if isinstance(node, ast.Call):
            _note_call(node, tree, file, imports.aliases, seen)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            seen.asks_keras_2 |= node.value == "TF_USE_LEGACY_KERAS"
            seen.options |= {node.value} if node.value.startswith("--") else set()
        elif isinstance(node, ast.ClassDef):
            bases = (_dotted(base, imports.aliases) for base in node.bases)
            for dotted in bases:
                if dotted and dotted.endswith("Trainer"):
                    seen.calls.setdefault(dotted, f"{file.name}:{node.lineno}")
    return imports


def _note_call(
    node: ast.Call, tree: ast.Module, file: Path, aliases: dict[str, str], seen: _Seen
) -> None:
    dotted = _dotted(node.func, aliases)
    if not dotted:
        return
    if dotted in _LIGHTNING and _is_told(node, "accelerator", "cpu"):
        seen.cpu_trainer = f"{file.name}:{node.lineno}"
    seen.calls.setdefault(dotted, f"{file.name}:{node.lineno}")
    if dotted in _DEEPSPEED and seen.deepspeed_config is None:
        seen.deepspeed_config = find_told(node, tree)
    if dotted.endswith("DataLoader"):
        seen.loader = True
        seen.workers.append(_workers(node))


def _note_import(
    node: ast.Import | ast.ImportFrom, where: str, imports: _Imports, seen: _Seen
) -> None:
    if isinstance(node, ast.Import):
        for each in node.names:
            top = each.name.split(".")[0]
            imports.aliases[each.asname or top] = each.name if each.asname else top
            imports.names.add(each.name)
            seen.imports.setdefault(top, where)
        return
    module = node.module or ""
    asked = {module, *(f"{module}.{each.name}".strip(".") for each in node.names)} - {""}
    for each in node.names:
        imports.aliases[each.asname or each.name] = f"{module}.{each.name}"
    if node.level:
        imports.relative |= {(node.level, name) for name in asked}
    else:
        imports.names |= asked
        seen.imports.setdefault(module.split(".")[0], where)


def _dotted(node: ast.expr, aliases: dict[str, str]) -> str | None:
    """Return the full name of what is called, imports resolved.

    `DDP(model)` after `from torch.nn.parallel import DistributedDataParallel as DDP` is
    `torch.nn.parallel.DistributedDataParallel`.
    """
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if _is_context(node, aliases):
        return ".".join([_CONTEXT, *reversed(parts)])
    if not isinstance(node, ast.Name):
        return None
    if parts and (held := aliases.get(f"{node.id}.{parts[-1]}")):
        return ".".join([held, *reversed(parts[:-1])])
    return ".".join([aliases.get(node.id, node.id), *reversed(parts)])


def _is_context(node: ast.expr | None, aliases: dict[str, str]) -> bool:
    """Say whether this is a call of `stoker.context`, by a name of one or two words."""
    called = node.func if isinstance(node, ast.Call) else None
    if isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name):
        owner = called.value.id
        return f"{aliases.get(owner, owner)}.{called.attr}" == _CONTEXT
    return isinstance(called, ast.Name) and aliases.get(called.id) == _CONTEXT


def _names_gpu(node: ast.AST) -> bool:
    """Say whether a name, an argument or a text speaks of a GPU, by whatever word."""
    words = (getattr(node, each, None) for each in ("id", "attr", "arg", "value", "name"))
    return any(isinstance(word, str) and _GPU_WORDS.search(word) for word in words)


def _is_told(call: ast.Call, name: str, value: str) -> bool:
    told = [each.value for each in call.keywords if each.arg == name]
    return any(isinstance(each, ast.Constant) and each.value == value for each in told)


def _workers(call: ast.Call) -> int | None:
    """Return the loader's workers: a number, 0 when not given, `None` when computed."""
    for keyword in call.keywords:
        if keyword.arg is None:
            return None
        if keyword.arg == "num_workers":
            value = keyword.value
            if isinstance(value, ast.Constant) and isinstance(value.value, int):
                return value.value
            return None
    return 0


def _conclude(seen: _Seen) -> Source:
    framework, evidence = _framework(seen)
    library = next((lib for name, lib in _LIBRARIES.items() if name in seen.imports), None)
    known = [each for each in seen.workers if each is not None]
    return Source(
        framework=framework,
        evidence=evidence,
        library=library,
        workers=max(known) if known and len(known) == len(seen.workers) else None,
        workers_known=bool(known) and len(known) == len(seen.workers),
        has_loader=seen.loader,
        stays_on_cpu=_stays_on_cpu(seen, framework, library),
        resolves_slurm=any(name.endswith("SlurmClusterResolver") for name in seen.calls),
        uses_data_parallel=seen.calls.get("torch.nn.DataParallel"),
        asks_notebook=seen.calls.get("get_ipython"),
        spawns=_SPAWN in seen.calls,
        was_read=True,
        options=frozenset(seen.options),
        keras_fit=_keras_fit(seen),
        asks_keras_2=seen.asks_keras_2 or "tf_keras" in seen.imports,
        horovod_optimizer=any(
            re.fullmatch(r"horovod\b.*\bkeras\.DistributedOptimizer", name) for name in seen.calls
        ),
        deepspeed_config=seen.deepspeed_config,
        central_storage=any(name.endswith(".CentralStorageStrategy") for name in seen.calls),
    )


def _stays_on_cpu(seen: _Seen, framework: str, library: str | None) -> str | None:
    """Return why no GPU is ever used: PyTorch takes one only where the script says so."""
    if seen.cpu_trainer:
        return f'{seen.cpu_trainer} sets accelerator="cpu"'
    back = next((name for name in seen.calls if name.endswith(".backward")), None)
    if framework != "plain" or library != "pytorch" or back is None or seen.names_gpu:
        return None
    return f"{seen.calls[back]} calls `{back}`, and nothing in the script names a GPU or a device"


def _keras_fit(seen: _Seen) -> str | None:
    """Return where something is fitted that is compiled as well: a Keras model."""
    fits = (name for name in seen.calls if name.endswith(".fit"))
    return next(
        (seen.calls[name] for name in fits if name.removesuffix("fit") + "compile" in seen.calls),
        None,
    )


def _framework(seen: _Seen) -> tuple[str, str]:
    for framework, calls in _CALLS:
        if framework in ("fsdp", "ddp") and _SPAWN in seen.calls:
            return "plain", f"{seen.calls[_SPAWN]} calls `{_SPAWN}`: it starts its own processes"
        for name in calls:
            for call in (name, f"{name}.from_argparse_args"):
                if call in seen.calls:
                    return framework, f"{seen.calls[call]} calls `{call}`"
    for framework, module in _IMPORTS:
        if module in seen.imports:
            return framework, f"{seen.imports[module]} imports `{module}`"
    return "plain", "no call to a distributed framework was found"
