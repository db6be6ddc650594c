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

from .hooks import dressed, drop_frame, never, spanning, stepping
from .timeline import DATA, FORWARD, LOSS, OTHER, PREPARE, Timeline

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from .process import Watched

# Phases in which the call of a tf.function is not part of what is going on.
OUTSIDE = frozenset((OTHER, PREPARE, LOSS))
# What reading the clocks of a graph may cost, as a share of the time; see marks.py.
BUDGET = 0.004
# A read costs about 0.1 ms, so that this only counts when the machine is very busy.
MAX_INTERVAL_S = 0.25
# Every call is read until this many reads show what one costs.
FIRST_READS = 32
# What calls may be given beyond their own wait, as a share of it.
MAX_OWED = 0.1
# Reads without a batch after which a graph's clocks are held to run elsewhere.
PATIENCE_READS = 3
# The accumulator drops what is older than itself; this is newer than it will ever be.
NEWEST = 2**62
MAX_PIPELINES = 8
MAX_STAGES = 24


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
                self._note_pipeline(dataset)
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

    def _note_pipeline(self, dataset: Any) -> None:
        stages = list(_stages(dataset))
        names = [type(each).__name__.strip("_").removesuffix("Dataset") for each in stages]
        pipelines = self.watched.facts.setdefault("tf_data", {})
        key = " < ".join(names)
        if key in pipelines:
            pipelines[key]["iterators"] += 1
            return
        if len(pipelines) >= MAX_PIPELINES:
            return
        batches = int(dataset.cardinality())
        pipelines[key] = {
            "stages": names,
            "prefetch": _ends_with_prefetch(names),
            "batch_size": next((size for each in stages if (size := _batch_size(each))), None),
            "batches": batches if batches >= 0 else None,
            "iterators": 1,
        }

    # -- gradients and optimizers ----------------------------------------------------

    def _watch_gradient(self) -> None:
        timeline, tape = self.timeline, self.tensorflow.GradientTape

        def is_traced() -> bool:
            if self.is_eager():
                return False
            if self.tracing is not None:
                self.tracing.has_gradient = True
            return True

        tape.gradient = spanning(
            timeline,
            tape.gradient,
            (timeline.backward_begins, timeline.backward_ends),
            is_traced,
        )

    def _watch_traced_optimizer(self, module: Any) -> None:
        """See which functions hold an optimizer's step; keras.py sees the steps outside them."""
        for kind in classes_with(module, "apply"):
            kind.apply = self._noting_optimizer(kind.apply)

    def _noting_optimizer(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def apply(self: Any, *args: Any, **kwargs: Any) -> Any:
            if hooks.is_eager():
                hooks.has_optimizer = True
            elif hooks.tracing is not None:
                hooks.tracing.has_optimizer = hooks.has_optimizer = True
            return original(self, *args, **kwargs)

        hooks = self
        return dressed(apply, original)

    def _watch_legacy_optimizer(self, module: Any) -> None:
        """Keras 2, which lives on as `tf_keras`."""
        for kind in classes_with(module, "apply_gradients"):
            kind.apply_gradients = self._noting_optimizer(
                stepping(self.timeline, kind.apply_gradients, lambda: not self.is_eager())
            )


class Meter:
    """The wait for data inside one tf.function, by clocks in its graph.

    The clocks are two `tf.timestamp` around the fetch, held in place by control dependencies;
    no value of the user's passes through them. Where a batch is fetched during the step before
    it, two more around the step tell how much of the wait was nothing but a wait. What they say
    is added up in an accumulator that the graph finds by its name, so that nothing is captured,
    and a function that the user exports runs elsewhere. Python reads it after a call, or after
    several where a read would cost too much; between reads each call gets what a call waited
    lately. With op determinism TensorFlow allows no clocks, and there are none.
    """

    def __init__(self, watched: Watched, tensorflow: Any, name: str) -> None:
        self.watched = watched
        self.timeline = watched.timeline
        self.tensorflow = tensorflow
        self.name = name
        self.is_on = True
        # Keras with `steps_per_execution` fetches a batch while it computes on the last one.
        self.is_ahead = False
        self.is_inside = False
        # The last call found no more data.
        self.is_at_end = False
        self._handle: Any = None
        self._has_batches = False
        self._reads = 0
        self._calls = 0
        self._spans_s = 0.0
        self._owed_s = 0.0
        self._rate_s = 0.0
        self._cost_s = MAX_INTERVAL_S
        self._read_at = 0.0

    # -- in the graph ----------------------------------------------------------------

    def time_fetching(
        self, original: Any, iterator: Any, args: Any, kwargs: Any, is_optional: bool
    ) -> Any:
        """Add the fetch of a batch to the graph, with a clock before and one after it."""
        tf = self.tensorflow
        self.is_ahead |= is_optional
        began = self._clock([])
        if began is None:
            return original(iterator, *args, **kwargs)
        with tf.control_dependencies([began]):
            batch = original(iterator, *args, **kwargs)
        # An optional may be empty: then the data is at its end.
        self._add(began, batch, batch.has_value if is_optional else lambda: True)
        return batch

    def time_computing(self, original: Any, function: Any, args: Any, kwargs: Any) -> Any:
        """Add the call of a function to the graph, with a clock before and one after it."""
        began = self._clock([args, kwargs])
        self.is_inside = True
        try:
            result = original(function, *args, **kwargs)
        finally:
            self.is_inside = False
        self._add(began, result, None)
        return result

    def _clock(self, values: Any) -> Any:
        tf = self.tensorflow
        try:
            inputs = self._tensors(values)
            with tf.name_scope("stoker"), tf.device("CPU:0"), tf.control_dependencies(inputs):
                return tf.timestamp()
        except Exception as error:
            self._give_up(error)
            return None

    def _add(self, began: Any, values: Any, has_value: Callable[[], Any] | None) -> None:
        tf, raw = self.tensorflow, self.tensorflow.raw_ops
        try:
            if began is None or not self._tensors(values):
                return
            ended = self._clock(values)
            with tf.name_scope("stoker"), tf.device("CPU:0"):
                took, none = ended - began, tf.constant(0.0, tf.float64)
                row = [none, none, took]
                if has_value is not None:
                    row = [took, tf.cast(has_value(), tf.float64), none]
                handle = self._accumulator()
                raw.ResourceAccumulatorApplyGradient(
                    handle=handle, local_step=NEWEST, gradient=tf.stack(row)
                )
        except Exception as error:
            self._give_up(error)

    def _accumulator(self) -> Any:
        tf = self.tensorflow
        return tf.raw_ops.ResourceConditionalAccumulator(
            dtype=tf.float64, shape=[3], shared_name=self.name
        )

    def _tensors(self, values: Any) -> list[Any]:
        tf = self.tensorflow
        graph = tf.compat.v1.get_default_graph()
        flat = tf.nest.flatten(values, expand_composites=True)
        return [each for each in flat if tf.is_tensor(each) and _graph_of(each) is graph]

    # -- from Python -----------------------------------------------------------------

    def waited(self, span_s: float, is_alone: bool) -> float:
        """Return what a call that took `span_s` waited for data; `is_alone` asks for itself."""
        self.is_at_end = False
        if not self.is_on:
            return 0.0
        self._calls += 1
        self._spans_s += span_s
        if self.timeline.last < self._read_at and not is_alone:
            given = min(self._rate_s, span_s)
            self._owed_s -= given
            return given
        try:
            return self._take(span_s, is_alone)
        except Exception as error:
            self._give_up(error)
            return 0.0

    def settle(self) -> None:
        """Read what was counted so far, so that the next call can be measured alone."""
        if not self.is_on or not self._calls:
            return
        try:
            self._take(0.0, False)
        except Exception as error:
            self._give_up(error)

    def _take(self, span_s: float, is_alone: bool) -> float:
        """Read, and return what is given of it to the last call, which took `span_s`."""
        calls, began = self._calls, self.timeline.clock()
        waited = self._read()
        ended = self.timeline.clock()
        # A read that the machine was too busy for says nothing of the next one.
        self._cost_s = min(ended - began, 1.1 * self._cost_s)
        if self._reads >= FIRST_READS:
            self._read_at = ended + min(MAX_INTERVAL_S, self._cost_s / BUDGET)
        self._calls, self._spans_s = 0, 0.0
        if is_alone:
            # The first call of an epoch says nothing of the others.
            return min(waited, span_s)
        self._owed_s += waited
        given = min(span_s, max(0.0, self._owed_s) if calls == 1 else self._rate_s)
        # What was given too little or too much is made good up to the next read, if it is little;
        # if it is much, the wait has changed, and belongs to calls that have gone by.
        most = MAX_OWED * waited
        self._owed_s = max(-most, min(most, self._owed_s - given))
        self._rate_s = max(0.0, waited + self._owed_s) / calls
        return given

    def _read(self) -> float:
        """Return the wait since the last read, as far as the function had nothing else to do."""
        tf, raw = self.tensorflow, self.tensorflow.raw_ops
        if not tf.config.experimental.get_synchronous_execution():
            self._give_up(None)
            return 0.0
        if self._handle is None:
            with tf.device("CPU:0"):
                self._handle = self._accumulator()
        count = int(raw.ResourceAccumulatorNumAccumulated(handle=self._handle))
        self._reads += 1
        if not count:
            if not self._has_batches and self._reads >= PATIENCE_READS:
                self._give_up(None)
            return 0.0
        mean = raw.ResourceAccumulatorTakeGradient(
            handle=self._handle, num_required=1, dtype=tf.float64
        )
        waited, batches, computed = (float(each) * count for each in mean.numpy())
        self._note_batches(round(batches))
        if computed:
            return min(waited, max(0.0, self._spans_s - computed))
        return waited

    def _note_batches(self, batches: int) -> None:
        self._has_batches |= batches > 0
        self.is_at_end = not batches
        if self._calls and batches > self._calls:
            self.watched.facts["batches_per_call"] = round(batches / self._calls)

    def _give_up(self, error: Exception | None) -> None:
        self.is_on = False
        what = "the wait for data inside a tf.function, a part of `graph`,"
        self.watched.give_up_on(what, error or RuntimeError("its clocks cannot be read from here"))


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


def _graph_of(tensor: Any) -> Any:
    # Tensors that are values, not part of a graph, raise here.
    try:
        return tensor.graph
    except Exception:
        return None


def _is_on_host(iterator: Any) -> bool:
    strategy = getattr(iterator, "_strategy", None)
    devices = [str(getattr(getattr(iterator, "_iterator_resource", None), "device", ""))]
    if strategy is not None:
        devices = [str(each) for each in strategy.extended.worker_devices]
    # Without a name, as in a graph, it is where the iterator is that was given.
    return all(not each or "CPU" in each for each in devices)


def _stages(dataset: Any) -> Iterable[Any]:
    """Yield a dataset and those it is made of, the last stage of the pipeline first."""
    for _ in range(MAX_STAGES):
        yield dataset
        inputs = dataset._inputs()
        if not inputs:
            return
        dataset = inputs[0]


def _ends_with_prefetch(names: list[str]) -> bool:
    return next((name for name in names if name not in ("Options", "Model")), "") == "Prefetch"


def _batch_size(stage: Any) -> int | None:
    size = getattr(stage, "_batch_size", None)
    return None if size is None else int(size)
