"""Keras 3: the steps of its optimizers, the call of its models, and what is trained.

On TensorFlow, `fit` calls one tf.function a batch and tensorflow.py sees all of it; here come
the loops that run eagerly. On PyTorch, pytorch.py sees loader and backward pass, and Keras' own
optimizer takes the step. Where the step is one compiled call, on JAX and with `jit_compile` on
PyTorch, only its length is known: from the begin of a batch to its end, as callbacks see them.
"""

from __future__ import annotations

import math
import sys
import weakref
from _thread import get_ident
from importlib import import_module

from .hooks import Compiler, dressed, never, spanning, stepping
from .phases import FORWARD, OPEN, OTHER
from .tensorflow import classes_with

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .process import Watched

# Backends whose steps are seen in parts; on the others a step is one piece.
EAGER = ("tensorflow", "torch")


def watch_keras(watched: Watched, trainer: Any) -> None:
    """Put the hooks in place; called when `keras.src.trainers.trainer` has been imported."""
    Keras(watched, trainer).install()


class Keras:
    """The hooks of one process."""

    def __init__(self, watched: Watched, trainer: Any) -> None:
        self.watched = watched
        self.trainer = trainer
        self.timeline = watched.timeline
        self.backend = str(trainer.backend.backend())
        self.is_compiling = _compiling(self.backend)
        # PyTorch's compiler would follow what we note; TensorFlow's tracing runs it once.
        self.is_followed = self.is_compiling if self.backend == "torch" else never
        # Models that were compiled or called, until the one that is trained is known.
        self.models: weakref.WeakSet[Any] = weakref.WeakSet()
        self.is_looking = True

    def install(self) -> None:
        """Wrap what is there, and what will be imported later."""
        when = self.watched.waiting.when_imported
        self.watched.facts["keras"] = {"backend": self.backend}
        when("keras.src.version", self._note_version)
        # `models.model` is half imported now; this one comes after it.
        when("keras.src.models.sequential", self._watch_model)
        when("keras.src.trainers.epoch_iterator", self._watch_epochs)
        for name in ("base_optimizer", "loss_scale_optimizer", "multi_optimizer"):
            when(f"keras.src.optimizers.{name}", self._watch_optimizer)
        if self.backend not in EAGER:
            self.watched.notes.append(
                f"on {self.backend} a step of Keras is one piece: "
                "the wait for data is part of `graph`"
            )
        if self.backend != "tensorflow":
            when("keras.src.callbacks.callback_list", self._watch_callbacks)

    def _note_version(self, module: Any) -> None:
        self.watched.facts["keras"]["version"] = str(module.__version__)

    # -- what runs eagerly -----------------------------------------------------------

    def _watch_optimizer(self, module: Any) -> None:
        timeline = self.timeline
        for kind in classes_with(module, "apply"):
            original = kind.apply
            if self.backend in EAGER:
                original = stepping(timeline, original, Compiler(self.is_compiling))
            kind.apply = self._noting(original)

    def _noting(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def apply(self: Any, *args: Any, **kwargs: Any) -> Any:
            if is_followed():
                return original(self, *args, **kwargs)
            result = original(self, *args, **kwargs)
            if hooks.is_looking:
                hooks.note_model(self)
            return result

        hooks, is_followed = self, self.is_followed
        return dressed(apply, original)

    def _watch_model(self, module: Any) -> None:
        timeline, is_compiling = self.timeline, self.is_compiling
        original = call = module.Model.__call__
        spanned = spanning(
            timeline,
            original,
            FORWARD,
            # Models are also called to be built, long before the loop.
            Compiler(lambda: not timeline.is_started or is_compiling()),
        )
        if self.backend in EAGER:
            call = spanned

        def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
            if is_followed():
                return original(self, *args, **kwargs)
            if hooks.is_looking:
                hooks.models.add(self)
            return call(self, *args, **kwargs)

        hooks, is_followed = self, self.is_followed
        module.Model.__call__ = dressed(__call__, original)

    def _watch_epochs(self, module: Any) -> None:
        timeline = self.timeline
        enumerate_ = module.EpochIterator._enumerate_iterator

        def _enumerate_iterator(self: Any) -> Any:
            is_watched = get_ident() == timeline.owner
            # An epoch of `steps_per_epoch` begins with an iterator that was read before.
            iterator = getattr(self, "_current_iterator", None)
            if iterator is not None and is_watched:
                timeline.epoch_begins(id(iterator))
            yield from enumerate_(self)
            if is_watched and timeline.current in OPEN:
                # What follows, such as saving, is not a part of the last step.
                timeline.data_begins()
                timeline.data_ends(0, got=False)

        module.EpochIterator._enumerate_iterator = dressed(_enumerate_iterator, enumerate_)

    # -- what is one compiled call ---------------------------------------------------

    def _watch_callbacks(self, module: Any) -> None:
        kind = module.CallbackList
        kind.on_epoch_begin = self._calling(kind.on_epoch_begin, before=self._epoch_begins)
        for name, begins, ends in (
            ("train", self._batch_begins, self._batch_ends),
            ("test", self._test_begins, self._test_ends),
        ):
            begin, end = f"on_{name}_batch_begin", f"on_{name}_batch_end"
            setattr(kind, begin, self._calling(getattr(kind, begin), after=begins))
            setattr(kind, end, self._calling(getattr(kind, end), before=ends))

    def _calling(
        self,
        original: Any,
        before: Callable[[Any], None] | None = None,
        after: Callable[[Any], None] | None = None,
    ) -> Callable[..., Any]:
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            is_watched = get_ident() == hooks.timeline.owner and hooks.is_one_piece(self)
            if is_watched and before is not None:
                before(self)
            result = original(self, *args, **kwargs)
            if is_watched and after is not None:
                after(self)
            return result

        hooks = self
        return dressed(method, original)

    def is_one_piece(self, callbacks: Any) -> bool:
        """Say whether the model of these callbacks is compiled: nothing is seen inside its steps."""
        model = getattr(callbacks, "_model", None)
        return self.backend not in EAGER or getattr(model, "jit_compile", False) is True

    def _epoch_begins(self, callbacks: Any) -> None:
        self.timeline.epoch_begins(id(callbacks))

    def _batch_begins(self, callbacks: Any) -> None:
        self.timeline.data_begins(id(callbacks))
        self.timeline.data_ends(id(callbacks), got=True)
        self.timeline.graph_begins(id(callbacks))

    def _batch_ends(self, callbacks: Any) -> None:
        self.timeline._step_forward = True
        self.timeline.graph_ends(id(callbacks))
        model = getattr(callbacks, "_model", None)
        if self.is_looking and model is not None:
            self.models.add(model)
            self.note_model(model.optimizer)

    def _test_begins(self, _: Any) -> None:
        self.timeline.data_begins(0)
        self.timeline.data_ends(0, got=True)
        self.timeline.forward_begins()

    def _test_ends(self, _: Any) -> None:
        self.timeline.switch(OTHER)

    # -- what is trained -------------------------------------------------------------

    def note_model(self, optimizer: Any) -> None:
        """Note the model that an optimizer trains, when it takes its first step."""
        self.is_looking = False
        try:
            variables = list(optimizer._trainable_variables)
            held = {id(each) for each in variables}
            models = [
                each
                for each in list(self.models)
                if each.built and any(id(one) in held for one in each.trainable_variables)
            ]
            model = max(models, key=lambda each: int(each.count_params()), default=None)
            self.watched.facts["model"] = {
                "name": None if model is None else type(model).__name__,
                "parameters": _size(variables if model is None else model.weights),
                "dtype": str(variables[0].dtype),
                "device": _device_of(variables[0]),
                "optimizer": type(optimizer).__name__,
            }
            self.models.clear()
        except Exception as error:
            self.watched.give_up_on("the model", error)


def _compiling(backend: str) -> Callable[[], bool]:
    """Return what says that a graph is being made and nothing is computed."""
    if backend == "tensorflow":
        # Keras may be imported in the middle of `import tensorflow`.
        is_eager = import_module("tensorflow.python.eager.context").executing_eagerly
        return lambda: not is_eager()
    if backend == "torch":
        compiler = getattr(sys.modules["torch"], "compiler", None)
        found: Callable[[], bool] = getattr(compiler, "is_compiling", never)
        return found
    return never


def _size(variables: list[Any]) -> int:
    return sum(math.prod(int(length) for length in each.shape) for each in variables)


def _device_of(variable: Any) -> str | None:
    """Return where a variable is: "CPU:0", "cuda:0"."""
    # JAX has no variables while it traces, and a traced value is nowhere.
    device = getattr(variable.value, "device", None)
    return None if device is None else str(device).rpartition("device:")[2]
