"""Which model a loop trains: the outermost modules that hold an optimizer's parameters.

They are found once, after the first optimizer steps, and the call of their class is wrapped;
wrapping every module's call would cost more than all the rest.
"""

from __future__ import annotations

import gc
import weakref
from _thread import get_ident
from contextlib import suppress

from .hooks import Compiler, dressed, drop_frame, seen_by, spanning
from .phases import FORWARD, OPEN
from .timeline import NEW_LOADER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .gates import Gates
    from .process import Watched

# Optimizers that are looked at; each costs one pass over all objects, once.
MAX_OPTIMIZERS = 16
# Steps without a call of the model that was found, after which its children are tried.
PATIENCE_STEPS = 3
MAX_DEPTH = 2
# Whose modules may hold the user's own.
WRAPPERS = ("torch.", "deepspeed.", "lightning.fabric.", "lightning_fabric.")
# How often DDP is asked what it measured of its own communication: asking takes 80 µs.
ASK_S = 0.02


class Models:
    """The outermost models of this process."""

    def __init__(self, watched: Watched, torch: Any, compiler: Compiler, gates: Gates) -> None:
        self.watched = watched
        self.timeline = watched.timeline
        self.torch = torch
        self.compiler = compiler
        self.gates = gates
        self._seen: dict[int, weakref.ref[Any]] = {}
        self._looks = 0
        # The modules that were there when they were last looked for, and after how many steps.
        self._modules: list[weakref.ref[Any]] = []
        self._found_in = -1
        self._is_patient = True
        self._roots: list[Any] = []
        self._classes: set[type] = set()
        # Classes of models within a root, each with its wrapper and what it had before.
        self._inner: list[tuple[Any, Any, Any]] = []
        self._ddp: Any = None
        self._engine: Any = None
        self._asked_at = 0.0
        self._depth = 0

    def look(self, optimizer: Any) -> None:
        """Find the outermost modules that hold parameters of an optimizer, when it first steps."""
        try:
            seen = self._seen.get(id(optimizer))
            if seen is None or seen() is not optimizer:
                self.watched.work(lambda: self._meet(optimizer))
            elif self._is_patient and self.timeline.steps >= PATIENCE_STEPS * (self._depth + 1):
                self._descend()
        except Exception as error:
            self._is_patient = False
            self._looks = MAX_OPTIMIZERS
            self.watched.give_up_on("the model", error)

    def _meet(self, optimizer: Any) -> None:
        self._seen[id(optimizer)] = weakref.ref(optimizer)
        self._looks += 1
        if self._looks > MAX_OPTIMIZERS:
            return
        held = {id(each) for group in optimizer.param_groups for each in group["params"]}
        roots = self._find_roots(held)
        engine = None if self._engine is None else self._engine()
        if not roots and engine is not None:
            roots = [engine]
        for root in roots:
            self._watch(root)
        # Weak references: a model that the user gives up must be freed.
        self._roots += [weakref.ref(root) for root in roots]
        if roots and "model" not in self.watched.facts:
            self._note(roots, optimizer)
        for root in roots:
            self._watch_inner(root)

    def _descend(self) -> None:
        if self.timeline.has_seen_forward:
            self._is_patient = False
            return
        self._depth += 1
        self._is_patient = self._depth < MAX_DEPTH
        children = [
            child for ref in self._roots if (root := ref()) is not None for child in root.children()
        ]
        self._roots = [weakref.ref(child) for child in children]
        for child in children:
            self._watch(child)

    def _find_roots(self, held: set[int]) -> list[Any]:
        # Optimizers that step first in one step of the loop were all there, and so were their models.
        if self._found_in != self.timeline.steps or not (roots := self._roots_of(held)):
            module = self.torch.nn.Module
            # `type` and not isinstance: proxies of other libraries must not be woken up.
            modules = [each for each in gc.get_objects() if issubclass(type(each), module)]
            self._modules = [weakref.ref(each) for each in modules]
            self._found_in = self.timeline.steps
            roots = self._roots_of(held)
        return roots

    def _roots_of(self, held: set[int]) -> list[Any]:
        modules = [each for ref in self._modules if (each := ref()) is not None]
        children = {
            id(child)
            for each in modules
            for child in (each.__dict__.get("_modules") or {}).values()
            if child is not None
        }
        return [
            each
            for each in modules
            if id(each) not in children and any(id(p) in held for p in each.parameters())
        ]

    def _watch(self, root: Any) -> None:
        distributed = getattr(self.torch.nn.parallel, "DistributedDataParallel", None)
        if distributed is not None and isinstance(root, distributed) and self._ddp is None:
            self._watch_ddp(root)
        parameter = next(iter(root.parameters()), None)
        if self.timeline.marks is not None and getattr(parameter, "is_cuda", False):
            self.timeline.marks.is_on = True
        kind = type(root)
        if kind not in self._classes:
            self._watch_calls(kind)
        self._inner = [each for each in self._inner if each[0] is not kind]

    def _watch_inner(self, root: Any) -> None:
        """Watch the models within a root that hold all it has, as they may be evaluated alone."""
        inner: Any = root
        for _ in range(MAX_DEPTH):
            inner = inner_of(inner)
            # What compilers have read they would read again.
            if inner is None or self.compiler.asks is not None:
                return
            kind = type(inner)
            if kind in self._classes or kind.__module__.startswith("torch."):
                continue
            before = vars(kind).get("__call__")
            self._inner.append((kind, self._watch_calls(kind), before))

    def leave_inner(self) -> None:
        """Take the wrappers from within models: a compiler is about to read these."""
        while self._inner:
            kind, wrapper, before = self._inner.pop()
            with suppress(Exception):  # the user's compiling goes on
                if vars(kind).get("__call__") is not wrapper:
                    continue
                if before is None:
                    del kind.__call__
                else:
                    kind.__call__ = before

    def _watch_calls(self, kind: Any) -> Any:
        self._classes.add(kind)
        module = self.torch.nn.Module
        known = self.gates.behind(kind.__call__)
        original = module if known is module.__call__ else known
        wrapper = spanning(self.timeline, original, FORWARD, self.compiler)
        self.gates.put(kind, "__call__", wrapper, "forward", original)
        return wrapper

    def _note(self, roots: list[Any], optimizer: Any) -> None:
        root = max(roots, key=_size)
        first = next(iter(root.parameters()))
        # How many threads each operation on the CPU is divided among.
        self.watched.facts["threads"] = self.torch.get_num_threads()
        self.watched.facts["model"] = {
            "name": name_of(root),
            "parameters": _size(root),
            "dtype": str(first.dtype).removeprefix("torch."),
            "device": str(first.device),
            "optimizer": type(optimizer).__name__,
            "is_compiled": any(type(each).__name__ == "OptimizedModule" for each in root.modules()),
            "matmul_precision": self.torch.get_float32_matmul_precision(),
        }
        if first.is_cuda:
            device = self.torch.cuda.get_device_properties(first.device)
            uuid = getattr(device, "uuid", None)
            self.watched.facts["device"] = {"name": device.name, "uuid": f"GPU-{uuid}"}

    # -- DDP -------------------------------------------------------------------------

    def _watch_ddp(self, root: Any) -> None:
        self._ddp = weakref.ref(root)
        if not next(iter(root.parameters())).is_cuda:
            # On a GPU, DDP waits for its own events when it samples; its default is left alone.
            root._set_ddp_runtime_logging_sample_rate(1)
        self.timeline.on_step = self._ask_ddp

    def _ask_ddp(self) -> None:
        timeline = self.timeline
        if timeline.last - self._asked_at < ASK_S or timeline.steps < 12:
            return
        self._asked_at = timeline.last
        try:
            ddp = self._ddp()
            data = {} if ddp is None else ddp._get_ddp_logging_data()
        except Exception as error:
            timeline.on_step = None
            self.watched.give_up_on("DDP's own measurements", error)
            return
        comm = data.get("backward_comm_time")
        overlap = data.get("backward_compute_comm_overlap_time")
        if comm is not None and overlap is not None:
            timeline.block.add("steady.ddp_comm", comm / 1e9)
            timeline.block.add("steady.ddp_overlapped", overlap / 1e9)
        buckets = data.get("num_buckets_reduced")
        if buckets is not None:
            self.watched.facts["ddp"] = {"buckets": buckets}

    # -- frameworks with a step of their own -----------------------------------------

    def watch_lightning(self, module: Any) -> None:
        """Lightning calls `training_step`, which need not call the module itself."""
        timeline = self.timeline
        for name in ("training_step", "validation_step", "test_step"):
            original = getattr(module.Strategy, name, None)
            if original is not None:
                setattr(module.Strategy, name, spanning(timeline, original, FORWARD))

    def watch_lightning_epochs(self, module: Any) -> None:
        """Lightning counts the batches: it asks for none after the last, which would end the epoch."""
        timeline = self.timeline

        def see() -> None:
            if get_ident() == timeline.owner and timeline.current in OPEN:
                timeline.data_begins(NEW_LOADER)
                timeline.data_ends(NEW_LOADER, got=False)

        for name in ("_FitLoop", "FitLoop"):
            kind: Any = getattr(module, name, None)
            original = getattr(kind, "on_advance_end", None)
            if original is not None:
                kind.on_advance_end = seen_by(see, original)

    def watch_deepspeed(self, module: Any) -> None:
        """DeepSpeed's engine steps once for several calls of the optimizer inside it."""
        timeline, models = self.timeline, self
        engine = module.DeepSpeedEngine
        # Its optimizer holds flat copies of the parameters, by which no model is found.
        if engine not in self._classes:
            self._watch_calls(engine)
        original = engine.step

        def step(self: Any, *args: Any, **kwargs: Any) -> Any:
            if get_ident() != timeline.owner or not self.is_gradient_accumulation_boundary():
                return original(self, *args, **kwargs)
            models._engine = weakref.ref(self)
            timeline.optimizer_begins(id(self))
            try:
                return original(self, *args, **kwargs)
            except BaseException as error:
                drop_frame(error)
                raise
            finally:
                timeline.optimizer_ends(id(self))

        engine.step = dressed(step, original)


def inner_of(model: Any) -> Any:
    """Return the one model within another that holds all its parameters; None if there is none."""
    if hasattr(model, "_orig_mod") or getattr(model, "_compiled_call_impl", None) is not None:
        return None  # compiled
    holders = [each for each in model.children() if next(each.parameters(), None) is not None]
    own = next(model.parameters(recurse=False), None)
    return holders[0] if len(holders) == 1 and own is None else None


def _size(model: Any) -> int:
    # With ZeRO 3 a parameter holds nothing between its uses, but knows its size.
    return sum(getattr(each, "ds_numel", None) or each.numel() for each in model.parameters())


def name_of(model: Any) -> str:
    """Return the name of the user's own class inside DDP, FSDP, DeepSpeed, Fabric, torch.compile or torch.jit."""
    kind = type(model)
    if any(base.__name__ == "FSDPModule" for base in kind.__mro__):
        return kind.__name__.removeprefix("FSDP")
    if kind.__module__.startswith(WRAPPERS):
        inner = dict(model.named_children())
        for name in ("_orig_mod", "module", "_fsdp_wrapped_module", "_forward_module"):
            if name in inner:
                return name_of(inner[name])
    return str(model.original_name) if kind.__module__ == "torch.jit._script" else kind.__name__
