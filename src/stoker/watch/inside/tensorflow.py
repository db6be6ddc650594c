"""TensorFlow: where its loops load and compute.

A `tf.function` that trains holds forward, backward and optimizer in one graph, and they cannot
be told apart from outside: its call is one span of phase `graph`. What a function does is seen
while it is traced, once. Keras' `fit` and many loops with a distribution strategy fetch the
batch inside the graph, and only a clock in the graph sees that wait; see `Meter`. Nothing else
of ours is in a graph.

On a GPU a call returns before the device is done, so that a span may be shorter than the work
it started, which then shows where the host next waits; the length of the step is right. A loop
over a dataset that is itself inside a `tf.function` is one call, and one step here.
"""

from __future__ import annotations

import weakref
from _thread import get_ident
from importlib import import_module

from .graph_meter import Meter
from .hooks import Compiler, dressed, drop_frame, never, seen_by, spanning, stepping
from .phases import BACKWARD, DATA, FORWARD, LOSS, OTHER, PREPARE
from .tf_data import note_pipeline
from .timeline import Timeline

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .process import Watched

# Phases in which the call of a tf.function is not part of what is going on.
OUTSIDE = frozenset((OTHER, PREPARE, LOSS))


def watch_tensorflow(watched: Watched, tensorflow: Any) -> None:
    """Put the hooks in place; called when `import tensorflow` is done."""
    TensorFlow(watched, tensorflow).install()


class Traced:
    """What is known of one tf.function, seen while it was traced."""

    __slots__ = ("__weakref__", "has_gradient", "has_optimizer", "meter")

    def __init__(self) -> None:
        self.has_gradient = False
        self.has_optimizer = False
        self.meter: Meter | None = None

    def include(self, inner: Traced) -> None:
        """A function does what the functions do that it calls."""
        self.has_gradient |= inner.has_gradient
        self.has_optimizer |= inner.has_optimizer
        self.meter = self.meter or inner.meter


class TensorFlow:
    """The hooks of one process."""

    def __init__(self, watched: Watched, tensorflow: Any) -> None:
        self.watched = watched
        self.tensorflow = tensorflow
        self.timeline = watched.timeline
        self.is_eager: Callable[[], bool] = tensorflow.executing_eagerly
        # Within its functions, what is called makes a graph.
        self.compiler = Compiler(lambda: not self.is_eager())
        self.is_deterministic: Callable[[], bool] = never
        self.runs_eagerly: Callable[[], bool] = tensorflow.config.functions_run_eagerly
        # The function that is called or traced now, and what is known of all.
        self.tracing: Traced | None = None
        self.traced: weakref.WeakKeyDictionary[Any, Traced] = weakref.WeakKeyDictionary()
        # An optimizer outside the functions with the gradients: its step is the loop's step.
        self.has_optimizer = False
        self.fresh: set[int] = set()
        self.newest = 0
        self._meters = 0
        self._is_fetching = False
        # The iterator that was given to the function that is called now.
        self._iterator: Any = None
        self._iterators: set[type] = set()

    def install(self) -> None:
        """Wrap what is there, each part for itself, and what will be imported later."""
        when = self.watched.waiting.when_imported
        self.watched.facts["tensorflow"] = str(self.tensorflow.__version__)
        for what, part in (
            ("tf.function", self._watch_functions),
            ("tf.data", self._watch_iterators),
            ("distributed tf.data", self._watch_distributed),
            ("tf.GradientTape", self._watch_gradient),
            ("op determinism", self._watch_determinism),
        ):
            try:
                part()
            except Exception as error:  # another version of TensorFlow: the rest still works
                self.watched.give_up_on(what, error)
        for name in ("base_optimizer", "loss_scale_optimizer", "multi_optimizer"):
            when(f"keras.src.optimizers.{name}", self._watch_traced_optimizer)
        when("tf_keras.src.optimizers.optimizer", self._watch_legacy_optimizer)

    # -- tf.function -----------------------------------------------------------------

    def _watch_functions(self) -> None:
        package = "tensorflow.python.eager.polymorphic_function"
        function = import_module(f"{package}.polymorphic_function").Function
        concrete = import_module(f"{package}.concrete_function").ConcreteFunction
        function.__call__ = self._calling(function.__call__)
        concrete.__call__ = self._calling(concrete.__call__)
        make = function.get_concrete_function

        def get_concrete_function(self: Any, *args: Any, **kwargs: Any) -> Any:
            if hooks.tracing is not None or get_ident() != hooks.timeline.owner:
                return make(self, *args, **kwargs)
            traced = hooks.tracing = hooks.traced.setdefault(self, Traced())
            try:
                made = make(self, *args, **kwargs)
            finally:
                hooks.tracing = None
            hooks.traced[made] = traced
            return made

        hooks = self
        function.get_concrete_function = dressed(get_concrete_function, make)

    def _calling(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
            if not hooks.is_eager():
                if hooks.tracing is None:
                    return original(self, *args, **kwargs)
                return hooks.call_inside(original, self, args, kwargs)
            if hooks.runs_eagerly():
                return original(self, *args, **kwargs)
            if not hooks.is_outside():
                return hooks.call_beside(original, self, args, kwargs)
            try:
                return hooks.call(original, self, args, kwargs)
            except BaseException as error:
                drop_frame(error)
                raise

        hooks = self
        return dressed(__call__, original)

    def call(self, original: Any, function: Any, args: Any, kwargs: Any) -> Any:
        """Call a function from Python: a step if it trains, and a forward pass if not."""
        timeline, outer = self.timeline, self.tracing
        traced = self.traced.get(function)
        is_new = traced is None
        if traced is None:
            traced = self.traced[function] = Traced()
        before, iterator = timeline.current, self._iterator_in(args)
        is_fetching = iterator is not None or traced.meter is not None
        is_fresh = False
        if is_fetching:
            is_fresh = self._begin_fetch(traced, self.newest if iterator is None else id(iterator))
        elif self._is_step(traced) and not timeline.is_started:
            _start(self.timeline)
        if is_new or traced.has_gradient or traced.has_optimizer:
            timeline.graph_begins(id(function))
        else:
            timeline.switch(FORWARD)
        began = timeline.last
        self.tracing, self._iterator = traced, iterator
        try:
            result = original(function, *args, **kwargs)
        except BaseException as error:
            self._fail(began, is_fetching)
            drop_frame(error)
            raise
        finally:
            self.tracing, self._iterator = outer, None
        if not (traced.has_gradient or traced.has_optimizer):
            self._move(timeline.switch(FORWARD), FORWARD, began)
        if traced.meter is not None and not self._split(traced.meter, began, is_fresh):
            timeline.data_ends(0, got=False)
        else:
            self._end(traced, id(function), before if not is_fetching else PREPARE)
        return result

    def call_beside(self, original: Any, function: Any, args: Any, kwargs: Any) -> Any:
        """Call a function in the middle of a phase, or in another thread."""
        timeline = self.timeline
        is_other = get_ident() != timeline.owner
        if not is_other or timeline.has_stepped or self.tracing is not None:
            return original(function, *args, **kwargs)
        traced = self.tracing = self.traced.setdefault(function, Traced())
        try:
            return original(function, *args, **kwargs)
        finally:
            self.tracing = None
            if self._is_step(traced):
                # Training in a thread of its own, as Ray does it: that thread is the one to watch.
                timeline.adopt(get_ident())

    def call_inside(self, original: Any, function: Any, args: Any, kwargs: Any) -> Any:
        """Call a function in the graph of another that is being traced."""
        outer = self.tracing
        assert outer is not None
        inner = self.tracing = self.traced.setdefault(function, Traced())
        meter = outer.meter
        try:
            if meter is None or not meter.is_ahead or meter.is_inside:
                return original(function, *args, **kwargs)
            return meter.time_computing(original, function, args, kwargs)
        finally:
            outer.include(inner)
            self.tracing = outer

    def _is_step(self, traced: Traced) -> bool:
        return traced.has_optimizer or (traced.has_gradient and not self.has_optimizer)

    def _end(self, traced: Traced, key: int, before: int) -> None:
        timeline = self.timeline
        if self._is_step(traced):
            if not timeline.is_started:
                _start(timeline)
                timeline.graph_begins(key)
            # What stands between the batch and the call is not the forward pass.
            timeline._step_forward = True
            timeline.graph_ends(key)
        elif traced.has_gradient:
            timeline._has_backward = timeline._step_forward = True
            timeline.switch(OTHER)
        elif before == OTHER:
            timeline.switch(OTHER)
        else:
            timeline.forward_begins()
            timeline.forward_ends()

    def _fail(self, began: float, is_fetching: bool) -> None:
        """A call that raised, as at the end of the data, was no step."""
        phase = self.timeline.switch(OTHER)
        self._move(phase, DATA if is_fetching else OTHER, began)
        if is_fetching:
            self.timeline.data_ends(0, got=False)

    def _move(self, phase: int, to: int, began: float) -> None:
        timeline = self.timeline
        timeline.totals[phase] -= timeline.last - began
        timeline.totals[to] += timeline.last - began

    # -- tf.data ---------------------------------------------------------------------

    def _watch_iterators(self) -> None:
        iterator = import_module("tensorflow.python.data.ops.iterator_ops").OwnedIterator
        self._iterators.add(iterator)
        begin = iterator.__init__

        def __init__(self: Any, dataset: Any = None, *args: Any, **kwargs: Any) -> None:
            if dataset is None or not hooks.is_outside():
                begin(self, dataset, *args, **kwargs)
                return
            hooks.timeline.loader_begins()
            try:
                begin(self, dataset, *args, **kwargs)
            except BaseException as error:
                drop_frame(error)
                raise
            finally:
                hooks.timeline.loader_ends(id(self))
            hooks.meet_iterator(self, dataset)

        hooks = self
        iterator.__init__ = dressed(__init__, begin)
        iterator._next_internal = self._fetching(iterator._next_internal, False)
        iterator.get_next_as_optional = self._fetching(iterator.get_next_as_optional, True)

    def _watch_distributed(self) -> None:
        module = import_module("tensorflow.python.distribute.input_lib")
        base = module.DistributedIteratorBase
        self._iterators.add(module.DistributedIterator)
        begin = base.__init__

        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
            begin(self, *args, **kwargs)
            if hooks.is_outside():
                hooks.timeline.epoch_begins(id(self))
                hooks.meet_iterator(self, None)

        hooks = self
        base.__init__ = dressed(__init__, begin)
        base.get_next = self._fetching(base.get_next, False)
        base.get_next_as_optional = self._fetching(base.get_next_as_optional, True)

    def is_outside(self) -> bool:
        """Say whether a phase may begin now: in the loop's thread, with nothing going on."""
        timeline = self.timeline
        return get_ident() == timeline.owner and timeline.current in OUTSIDE and self.is_eager()

    def meet_iterator(self, iterator: Any, dataset: Any) -> None:
        """Note that an epoch begins, and how the pipeline is set up."""
        try:
            self.newest = id(iterator)
            self.fresh.add(self.newest)
            if dataset is not None:
                note_pipeline(self.watched.facts, dataset)
        except Exception as error:
            self.watched.give_up_on("the pipeline's settings", error)

    def _fetching(self, original: Callable[..., Any], is_optional: bool) -> Callable[..., Any]:
        timeline = self.timeline

        def fetch(self: Any, *args: Any, **kwargs: Any) -> Any:
            if not hooks.is_eager():
                return hooks.fetch_inside(original, self, args, kwargs, is_optional)
            if get_ident() != timeline.owner:
                return hooks.fetch_beside(original, self, args, kwargs)
            if timeline.current not in OUTSIDE:
                return original(self, *args, **kwargs)
            timeline.data_begins(id(self))
            try:
                batch = original(self, *args, **kwargs)
            except BaseException as error:
                timeline.data_ends(id(self), got=False)
                drop_frame(error)
                raise
            hooks.fresh.discard(id(self))
            timeline.data_ends(id(self), got=True)
            return batch

        hooks = self
        return dressed(fetch, original)

    def fetch_beside(self, original: Any, iterator: Any, args: Any, kwargs: Any) -> Any:
        """Fetch in a thread that does not run the model: time beside the step."""
        began = self.timeline.clock()
        try:
            return original(iterator, *args, **kwargs)
        finally:
            self.timeline.beside["data"] += self.timeline.clock() - began

    def fetch_inside(
        self, original: Any, iterator: Any, args: Any, kwargs: Any, is_optional: bool
    ) -> Any:
        """Fetch in the graph that is being traced, between two clocks."""
        traced = self.tracing
        if traced is None or self._is_fetching or not self._can_have_clocks(iterator, is_optional):
            return original(iterator, *args, **kwargs)
        if traced.meter is None:
            self._meters += 1
            traced.meter = Meter(self.watched, self.tensorflow, f"stoker_{self._meters}")
        self._is_fetching = True
        try:
            return traced.meter.time_fetching(original, iterator, args, kwargs, is_optional)
        finally:
            self._is_fetching = False

    def _can_have_clocks(self, iterator: Any, is_optional: bool) -> bool:
        """Say whether clocks may be in the graph that is being traced; note why not."""
        try:
            why = self._why_no_clocks(iterator, is_optional)
        except Exception as error:  # another version of TensorFlow
            why = f"{type(error).__name__}: {error}"
        note = f"the wait for data inside a tf.function is not told apart from `graph`: {why}"
        if why and note not in self.watched.notes:
            self.watched.notes.append(note)
        return not why

    def _why_no_clocks(self, iterator: Any, is_optional: bool) -> str:
        tf = self.tensorflow
        graph = tf.compat.v1.get_default_graph()
        control_flow = import_module("tensorflow.python.ops.control_flow_util")
        if control_flow.GraphOrParentsInXlaContext(graph):
            return "XLA compiles it"
        if self.is_deterministic():
            return "op determinism is on"
        # A clock on the host, after something on a device, would make the host wait for it.
        if not (_is_on_host(iterator) and _is_on_host(self._iterator)):
            return "the batches are fetched on the device"
        devices = tf.config.list_logical_devices()
        if is_optional and any(each.device_type != "CPU" for each in devices):
            return "the next batch is fetched while the device computes"
        return ""

    def _watch_determinism(self) -> None:
        """With op determinism, TensorFlow runs no clocks: graphs that have some are made anew."""
        module: Any = import_module("tensorflow.python.framework.config")
        self.is_deterministic = module.is_op_determinism_enabled
        enable = module.enable_op_determinism

        def enable_op_determinism() -> None:
            enable()
            for function, traced in list(hooks.traced.items()):
                if traced.meter is not None:
                    traced.meter = None
                    _forget_traces(function)

        hooks = self
        module.enable_op_determinism = dressed(enable_op_determinism, enable)
        self.tensorflow.config.experimental.enable_op_determinism = module.enable_op_determinism

    def _iterator_in(self, args: tuple[Any, ...]) -> Any:
        for each in args:
            if type(each) in self._iterators:
                return each
        return None

    def _begin_fetch(self, traced: Traced, loader: int) -> bool:
        timeline = self.timeline
        timeline.data_begins(loader)
        timeline.data_ends(loader, got=True)
        if loader not in self.fresh:
            return False
        self.fresh.discard(loader)
        if traced.meter is not None:
            traced.meter.settle()
        return True

    def _split(self, meter: Meter, began: float, is_fresh: bool) -> bool:
        """Give the wait inside the call to `data`; return whether there was a batch."""
        timeline, totals = self.timeline, self.timeline.totals
        phase = timeline.switch(OTHER)
        ended = timeline.last
        waited = meter.waited(ended - began, is_fresh)
        timeline.switch(phase)
        if meter.is_at_end:
            waited = ended - began
            totals[OTHER] -= timeline.last - ended
            totals[DATA] += timeline.last - ended
        totals[phase] -= waited
        totals[DATA] += waited
        return not meter.is_at_end

    # -- gradients and optimizers ----------------------------------------------------

    def _watch_gradient(self) -> None:
        timeline, tape = self.timeline, self.tensorflow.GradientTape

        def note() -> None:
            if self.tracing is not None and not self.is_eager():
                self.tracing.has_gradient = True

        spanned = spanning(timeline, tape.gradient, BACKWARD, self.compiler)
        tape.gradient = seen_by(note, spanned)

    def _watch_traced_optimizer(self, module: Any) -> None:
        """See which functions hold an optimizer's step; keras.py sees the steps outside them."""
        for kind in classes_with(module, "apply"):
            kind.apply = seen_by(self._note_optimizer, kind.apply)

    def _note_optimizer(self) -> None:
        if self.is_eager():
            self.has_optimizer = True
        elif self.tracing is not None:
            self.tracing.has_optimizer = self.has_optimizer = True

    def _watch_legacy_optimizer(self, module: Any) -> None:
        """Keras 2, which lives on as `tf_keras`."""
        for kind in classes_with(module, "apply_gradients"):
            step = stepping(self.timeline, kind.apply_gradients, self.compiler)
            kind.apply_gradients = seen_by(self._note_optimizer, step)


def classes_with(module: Any, method: str) -> list[Any]:
    """Return the classes of a module that define a method themselves."""
    return [
        each
        for each in list(vars(module).values())
        if isinstance(each, type) and each.__module__ == module.__name__ and method in vars(each)
    ]


def _start(timeline: Timeline) -> None:
    """The loop begins with a function that is given its data."""
    timeline.data_begins()
    timeline.data_ends(0, got=True)


def _forget_traces(function: Any) -> None:
    for name in ("_variable_creation_config", "_no_variable_creation_config"):
        config = getattr(function, name, None)
        if config is not None and config.function_cache is not None:
            config.function_cache.clear()


def _is_on_host(iterator: Any) -> bool:
    strategy = getattr(iterator, "_strategy", None)
    devices = [str(getattr(getattr(iterator, "_iterator_resource", None), "device", ""))]
    if strategy is not None:
        devices = [str(each) for each in strategy.extended.worker_devices]
    # Without a name, as in a graph, it is where the iterator is that was given.
    return all(not each or "CPU" in each for each in devices)
