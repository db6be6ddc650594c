"""A clock inside the graph of a tf.function, which alone sees the wait for data there."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .process import Watched

# What reading the clocks of a graph may cost, as a share of the time; see marks.py.
BUDGET = 0.004
# A read costs about 0.1 ms, so that this only counts when the machine is very busy.
MAX_INTERVAL_S = 0.25
# Every call is read until this many reads show what one costs.
FIRST_READS = 32
# Reads without a batch after which a graph's clocks are held to run elsewhere.
PATIENCE_READS = 3
# The accumulator drops what is older than itself; this is newer than it will ever be.
NEWEST = 2**62


class Meter:
    """The wait for data inside one tf.function, by clocks in its graph.

    The clocks are two `tf.timestamp` around the fetch, held in place by control dependencies. The
    batch is handed on when the second was read: it would wait behind the first large operation
    that has what it needs. Where a batch is fetched during the step before
    it, two more around the step tell how much of the wait was nothing but a wait. What they say
    is added up in an accumulator that the graph finds by its name, so that nothing is captured,
    and a function that the user exports runs elsewhere. Python reads it after a call, or after
    several where a read would cost too much; between reads a call is given what it took longer
    than calls lately took to compute, and the read says what that was wrong by. With op
    determinism TensorFlow allows no clocks, and there are none.
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
        # Of a call, without its wait; what calls still have to be given, by the last read, and
        # as it seems since; what they were given since.
        self._compute_s = 0.0
        self._owed_s = 0.0
        self._seems_owed_s = 0.0
        self._given_s = 0.0
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
        ended = self._add(began, batch, batch.has_value if is_optional else lambda: True)
        return batch if ended is None else self._after(ended, batch)

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

    def _after(self, clock: Any, values: Any) -> Any:
        """Return the same values, for whatever is to wait until a clock was read."""
        tf = self.tensorflow

        def held(value: Any) -> Any:
            if not tf.is_tensor(value):
                return value
            with tf.device(value.device or "CPU:0"):
                return tf.identity(value)

        try:
            with tf.name_scope("stoker"), tf.control_dependencies([clock]):
                return tf.nest.map_structure(held, values, expand_composites=True)
        except Exception as error:
            self._give_up(error)
            return values

    def _add(self, began: Any, values: Any, has_value: Callable[[], Any] | None) -> Any:
        """Add what passed since a clock; return the clock that says so, None if there is none."""
        tf, raw = self.tensorflow, self.tensorflow.raw_ops
        try:
            if began is None or not self._tensors(values):
                return None
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
            return None
        return ended

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
        try:
            if is_alone:
                # The first call of an epoch says nothing of the others.
                return min(self._take(), span_s)
            if self.timeline.last < self._read_at:
                self._seems_owed_s += span_s - self._compute_s
            else:
                self._settle()
        except Exception as error:
            self._give_up(error)
            return 0.0
        given = min(max(0.0, self._seems_owed_s), span_s)
        self._seems_owed_s -= given
        self._given_s += given
        return given

    def settle(self) -> None:
        """Read what was counted so far, so that the next call can be measured alone."""
        if not self.is_on or not self._calls:
            return
        try:
            self._settle()
        except Exception as error:
            self._give_up(error)

    def _settle(self) -> None:
        """Read what the calls since the last read waited, in place of what it seemed."""
        calls, spans_s = self._calls, self._spans_s
        waited = self._take()
        self._compute_s = (spans_s - waited) / calls
        self._owed_s += waited - self._given_s
        self._seems_owed_s, self._given_s = self._owed_s, 0.0

    def _take(self) -> float:
        """Read, and return what was waited since the last read."""
        began = self.timeline.clock()
        waited = self._read()
        ended = self.timeline.clock()
        # A read that the machine was too busy for says nothing of the next one.
        self._cost_s = min(ended - began, 1.1 * self._cost_s)
        if self._reads >= FIRST_READS:
            self._read_at = ended + min(MAX_INTERVAL_S, self._cost_s / BUDGET)
        self._calls, self._spans_s = 0, 0.0
        return waited

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


def _graph_of(tensor: Any) -> Any:
    # Tensors that are values, not part of a graph, raise here.
    try:
        return tensor.graph
    except Exception:
        return None
