"""PyTorch: where its loops load, compute and step.

Few points are wrapped, each once: the loader's `__next__`, the call of the outermost model,
`torch.autograd.backward`, the optimizer's step. Nothing is registered on the user's objects,
so that they are saved, copied and scripted as without us; compiled code is left as it is.
"""

from __future__ import annotations

import sys
from _thread import get_ident

from .gates import Gates
from .hooks import (
    Compiler,
    around_steps,
    asking,
    dressed,
    drop_frame,
    never,
    seen_by,
    spanning,
    stepping,
    within,
)
from .loader_facts import find_trainer, loader_facts
from .loading import Loading
from .models import Models
from .phases import BACKWARD, COMM, FORWARD, H2D, OPEN, OPTIMIZER, OTHER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .process import Watched

COLLECTIVES = (
    "all_reduce", "reduce", "broadcast", "all_gather", "all_gather_into_tensor", "gather",
    "scatter", "reduce_scatter", "reduce_scatter_tensor", "all_to_all", "all_to_all_single",
    "barrier", "send", "recv", "monitored_barrier", "all_gather_single", "reduce_scatter_single",
)  # fmt: skip
MAX_LOADERS = 8
BACKWARD_MAY_BEGIN = OPEN | {FORWARD}


def watch_torch(watched: Watched, torch: Any) -> None:
    """Put the hooks in place; called when `import torch` is done."""
    PyTorch(watched, torch).install()


class PyTorch:
    """The hooks of one process."""

    def __init__(self, watched: Watched, torch: Any) -> None:
        self.watched = watched
        self.torch = torch
        self.timeline = watched.timeline
        compiler = getattr(torch, "compiler", None)
        self.is_compiling: Callable[[], bool] = getattr(
            compiler, "is_dynamo_compiling", getattr(compiler, "is_compiling", never)
        )
        self.compiler = Compiler(self.is_compiling)
        self.gates = Gates(self.timeline)
        self.models = Models(watched, torch, self.compiler, self.gates)
        self.loading = Loading(watched)
        self._batch_types: set[type] = set()
        # What is noted of loaders, by iterators that have given no batch yet.
        self._unread: dict[int, dict[str, Any]] = {}

    def install(self) -> None:
        """Wrap what is there, and what will be imported later."""
        torch, when = self.torch, self.watched.waiting.when_imported
        self.watched.facts["torch"] = str(torch.__version__)
        self.timeline.has_gradients = torch.is_grad_enabled
        when("torch._dynamo.symbolic_convert", self._watch_reading)
        when("torch._dynamo.eval_frame", self._watch_compiling)
        when("torch._dynamo.convert_frame", self._watch_capturing)
        when("torch.utils.data.dataloader", self._watch_loader)
        when("torch.autograd", self._watch_backward)
        when("torch.optim.optimizer", self._watch_optimizer)
        when("torch.amp.grad_scaler", self._watch_scaler)
        when("torch.distributed.distributed_c10d", self._watch_collectives)
        when("deepspeed.runtime.engine", self.models.watch_deepspeed)
        for name in ("lightning.pytorch", "pytorch_lightning"):
            when(f"{name}.strategies.strategy", self.models.watch_lightning)
            when(f"{name}.loops.fit_loop", self.models.watch_lightning_epochs)
        if torch.version.cuda or torch.version.hip:
            self._watch_cuda()

    # -- compiling -------------------------------------------------------------------
    # Every optimizer imports the compiler; most programs compile nothing.

    def _watch_reading(self, module: Any) -> None:
        """Ask whether our functions are read from when anything is, which this sees first."""

        def see() -> None:
            self.compiler.asks = self.is_compiling
            self._make_way()

        translator = module.InstructionTranslator
        translator.__init__ = seen_by(see, translator.__init__)
        self.compiler.asks = None

    def _watch_compiling(self, module: Any) -> None:
        """Have no gates when something is to be compiled, which holds on to our functions."""
        context = module.OptimizeContext
        context.__init__ = seen_by(self._make_way, context.__init__)
        self.gates.open()

    def _watch_capturing(self, module: Any) -> None:
        """The same, where a model's graph is captured without compiling it."""
        if hasattr(module, "get_traced_fn"):
            module.get_traced_fn = seen_by(self._make_way, module.get_traced_fn)

    def _make_way(self) -> None:
        self.gates.close()
        self.models.leave_inner()

    # -- loading ---------------------------------------------------------------------

    def _watch_loader(self, module: Any) -> None:
        self._watch_batches(module._BaseDataLoaderIter)
        self._watch_epochs(module.DataLoader)

    def _watch_batches(self, iterator: Any) -> None:
        timeline, loading = self.timeline, self.loading
        following = iterator.__next__

        def __next__(self: Any) -> Any:
            is_mine = get_ident() == timeline.owner
            is_begun = is_mine and timeline.current in OPEN
            began = 0.0 if is_mine else timeline.clock()
            number = id(self)
            begun = None
            if is_begun:
                timeline.data_begins(number)
                if timeline.last >= loading.due:
                    begun = loading.begin(self)
            try:
                batch = following(self)
            except BaseException as error:
                if is_begun:
                    timeline.data_ends(number, got=False)
                drop_frame(error)
                raise
            if hooks._unread and (noted := hooks._unread.pop(number, None)) is not None:
                noted["epochs"] += 1
            if not is_begun:
                if not is_mine:  # loaded in a thread that does not run the model
                    timeline.beside["data"] += timeline.clock() - began
                return batch
            if begun is not None:
                loading.end(begun)
            timeline.data_ends(number, got=True)
            if type(batch) not in hooks._batch_types:
                hooks.meet_batch(batch)
            return batch

        hooks = self
        wrapper = asking(timeline, following, dressed(__next__, following))
        self.gates.put(iterator, "__next__", wrapper, "asking")

    def _watch_epochs(self, loader: Any) -> None:
        timeline = self.timeline
        begin = loader.__iter__

        def __iter__(self: Any) -> Any:
            is_mine = get_ident() == timeline.owner and timeline.current in OPEN
            if is_mine:
                timeline.loader_begins()
            try:
                it = begin(self)
            except BaseException as error:
                if is_mine:
                    timeline.switch(OTHER)
                drop_frame(error)
                raise
            if is_mine:
                timeline.loader_ends(id(it))
            hooks.meet_loader(self, id(it))
            return it

        hooks = self
        loader.__iter__ = dressed(__iter__, begin)

    def meet_loader(self, loader: Any, giver: int) -> None:
        """Note how the loader is set up whose batches come from there."""
        books, unread = self.timeline.books, self._unread
        for notes in (books, unread):
            notes.pop(giver, None)  # of an iterator that was here before
        try:
            loaders = self.watched.facts.setdefault("loaders", {})
            facts = loader_facts(loader)
            # Many loops make a new, equal loader for each epoch.
            key = "-".join(str(value) for value in facts.values())
            if key not in loaders and len(loaders) < MAX_LOADERS:
                trainer = find_trainer(sys._getframe())
                loaders[key] = {**facts, "trainer": trainer, "epochs": 0, "trained": 0}
            if key in loaders:
                # Keras makes an iterator at the end of each epoch that nobody reads.
                books[giver] = unread[giver] = loaders[key]
        except Exception as error:
            self.watched.give_up_on("the loader's settings", error)

    def meet_batch(self, batch: Any) -> None:
        """Watch the `to` of batch types that have their own, such as those of HF and PyG."""
        self._batch_types.add(type(batch))
        try:
            parts = batch.values() if isinstance(batch, dict) else batch
            parts = list(parts)[:8] if isinstance(batch, (dict, list, tuple)) else []
            for each in (batch, *parts):
                self._watch_move(type(each))
        except Exception as error:
            self.watched.give_up_on("the batch's type", error)

    def _watch_move(self, kind: type) -> None:
        if issubclass(kind, self.torch.Tensor):
            return
        for name in ("to", "cuda"):
            home = next((each for each in kind.__mro__ if name in vars(each)), None)
            original = vars(home).get(name) if home else None
            if (
                home is None
                or not hasattr(original, "__code__")
                or hasattr(original, "__wrapped__")
            ):
                continue
            setattr(home, name, self._moving(original))

    def _moving(self, original: Any) -> Callable[..., Any]:
        return within(self.timeline, original, H2D, self.compiler)

    # -- computing -------------------------------------------------------------------

    def _watch_backward(self, module: Any) -> None:
        timeline = self.timeline
        # A model whose answer is a gradient, such as a force, gives it to what is evaluated, too.
        for name, where in (("backward", BACKWARD_MAY_BEGIN), ("grad", OPEN)):
            original = getattr(module, name)
            wrapper = spanning(timeline, original, BACKWARD, self.compiler, where)
            setattr(module, name, wrapper)
        self.gates.put(module, "backward", module.backward, "backward")

    def _watch_optimizer(self, module: Any) -> None:
        timeline, compiler = self.timeline, self.compiler
        task = getattr(self.torch._C, "_current_graph_task_id", lambda: -1)
        before, after = around_steps(
            timeline, compiler, self.models.look, is_engines=lambda: task() != -1
        )
        self.gates.register(module.register_optimizer_step_pre_hook, before, "before")
        self.gates.register(module.register_optimizer_step_post_hook, after, "after")
        zero_grad = module.Optimizer.zero_grad
        module.Optimizer.zero_grad = within(timeline, zero_grad, OPTIMIZER, compiler)

    def _watch_scaler(self, module: Any) -> None:
        # A step that the scaler skips, for infinite gradients, is a step of the loop.
        module.GradScaler.step = stepping(
            self.timeline,
            module.GradScaler.step,
            self.compiler,
            lambda self, optimizer=None, *_, **__: id(optimizer),
        )

    # -- communicating ---------------------------------------------------------------

    def _watch_collectives(self, module: Any) -> None:
        for name in COLLECTIVES:
            original = getattr(module, name, None)
            if original is None:
                continue
            wrapper = self._communicating(original)
            setattr(module, name, wrapper)
            package = sys.modules.get("torch.distributed")
            if getattr(package, name, None) is original:
                setattr(package, name, wrapper)
        self._watch_start(module)
        self.watched.waiting.when_imported("torch.distributed", self._reexport)
        work = module.Work
        work.wait = self._communicating(work.wait)

    def _watch_start(self, module: Any) -> None:
        watched = self.watched
        original = module.init_process_group

        def init_process_group(*args: Any, **kwargs: Any) -> Any:
            try:
                result = original(*args, **kwargs)
            except BaseException as error:
                drop_frame(error)
                raise
            watched.rank, watched.world = module.get_rank(), module.get_world_size()
            return result

        module.init_process_group = dressed(init_process_group, original)

    def _reexport(self, package: Any) -> None:
        home = sys.modules["torch.distributed.distributed_c10d"]
        for name in (*COLLECTIVES, "init_process_group"):
            if hasattr(package, name):
                setattr(package, name, getattr(home, name))

    def _communicating(self, original: Callable[..., Any]) -> Callable[..., Any]:
        timeline, is_compiling = self.timeline, self.is_compiling

        def collective(*args: Any, **kwargs: Any) -> Any:
            if is_compiling():
                return original(*args, **kwargs)
            is_mine = get_ident() == timeline.owner
            is_begun = is_mine and timeline.current != COMM
            before = timeline.switch(COMM) if is_begun else COMM
            began = timeline.clock()
            try:
                return original(*args, **kwargs)
            except BaseException as error:
                drop_frame(error)
                raise
            finally:
                if is_begun:
                    timeline.switch(before)
                elif not is_mine:
                    timeline.beside["comm"] += timeline.clock() - began

        return dressed(collective, original)

    # -- the device ------------------------------------------------------------------

    def _watch_cuda(self) -> None:
        from .device_lines import DeviceLines
        from .device_memory import read_memory
        from .marks import Marks

        torch, timeline = self.torch, self.timeline
        device = Cuda(torch)
        timeline.marks = Marks(timeline, device, self.watched.give_up_on)
        timeline.marks.lines = DeviceLines(timeline, torch, device)
        for name in ("to", "cuda", "copy_"):
            setattr(torch.Tensor, name, self._copying(getattr(torch.Tensor, name), name))
        self.watched.asked["memory"] = lambda: read_memory(torch)
        graph = torch.cuda.CUDAGraph
        graph.replay = self._replaying(graph.replay)

    def _copying(self, original: Any, name: str) -> Callable[..., Any]:
        timeline, is_compiling, dtype = self.timeline, self.is_compiling, self.torch.dtype
        is_into = name == "copy_"

        def copying(self: Any, *args: Any, **kwargs: Any) -> Any:
            is_begun = (
                not timeline.is_light
                and not is_compiling()
                and timeline.current in OPEN
                and self.is_cuda is is_into
                and not (args and type(args[0]) is dtype)
                and not (is_into and getattr(args[0] if args else None, "is_cuda", True))
                and get_ident() == timeline.owner
            )
            before = timeline.switch(H2D) if is_begun else H2D
            try:
                result = original(self, *args, **kwargs)
            except BaseException as error:
                drop_frame(error)
                raise
            finally:
                if is_begun:
                    timeline.switch(before)
            if is_begun and result.is_cuda and timeline.marks is not None:
                timeline.marks.is_on = True
            return result

        return dressed(copying, original)

    def _replaying(self, original: Any) -> Callable[..., Any]:
        timeline = self.timeline

        def replay(self: Any) -> Any:
            if get_ident() != timeline.owner or timeline.current not in OPEN:
                return original(self)
            timeline.graph_begins(id(self))
            try:
                return original(self)
            except BaseException as error:
                drop_frame(error)
                raise
            finally:
                timeline.graph_ends(id(self))

        return dressed(replay, original)


class Cuda:
    """A stream of torch.cuda, CUDA's or ROCm's."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._streams: dict[object, Any] = {}
        self._stream: Any = None
        self.is_capturing = torch.cuda.is_current_stream_capturing

    def make_event(self) -> Any:
        """Return an event with timing."""
        return self._torch.cuda.Event(enable_timing=True)

    def follow(self) -> None:
        """From now on, events are for the stream that is current."""
        # `current_stream` makes a new object each time, which takes longer than all the rest.
        native = self._torch._C
        key = native._cuda_getCurrentStream(native._cuda_getDevice())
        stream = self._streams.get(key)
        if stream is None:
            stream = self._streams[key] = self._torch.cuda.current_stream()
        self._stream = stream

    def record(self, event: Any) -> None:
        """Put the event on the stream that is followed."""
        if self._stream is None:
            self.follow()
        event.record(self._stream)
