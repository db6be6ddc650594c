"""Which modules are waited for, and how a function of theirs is wrapped."""

from __future__ import annotations

import sys
from _thread import get_ident

from .passing import ANSWERED, SEEN_BACKWARD, SEEN_FORWARD
from .phases import BACKWARD, DATA, FORWARD, LOSS, OPEN, OPTIMIZER, OTHER, PREPARE, STEPS_WITHIN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType
    from typing import Any

    from .process import Watched
    from .timeline import Timeline


UNNAMED = "<stoker importlib._bootstrap>"
# Where PyTorch gives batches, and where it has its own function around an optimizer's step.
LOADERS = "torch/utils/data/dataloader.py"
OPTIMIZERS = "torch/optim/optimizer.py"
# What is on while an optimizer steps in a backward pass, which may be one of several.
WITHIN_BACKWARD = frozenset((BACKWARD, OPTIMIZER))


def wait_for_frameworks(watched: Watched) -> None:
    """Register what happens when the user's program imports a framework."""
    when = watched.waiting.when_imported
    when("torch", lambda module: _torch(watched, module))
    when("tensorflow", lambda module: _tensorflow(watched, module))
    when("keras.src.trainers.trainer", lambda module: _keras(watched, module))


def _torch(watched: Watched, torch: Any) -> None:
    from .pytorch import watch_torch

    watch_torch(watched, torch)


def _tensorflow(watched: Watched, tensorflow: Any) -> None:
    from .tensorflow import watch_tensorflow

    watch_tensorflow(watched, tensorflow)


def _keras(watched: Watched, trainer: Any) -> None:
    from .keras import watch_keras

    watch_keras(watched, trainer)


def never() -> bool:
    """Stand in for `torch.compiler.is_compiling` where there is no compiler."""
    return False


class Compiler:
    """Who may read our functions instead of running them, and is to see nothing that changes."""

    def __init__(self, asks: Callable[[], bool] | None = None) -> None:
        # Says whether a function is being read; None as long as there is nobody who would.
        self.asks = asks


NOBODY = Compiler()


def drop_frame(error: BaseException) -> None:
    """Take our own frame out of the traceback: it reads as without us (Python 3.11 and newer)."""
    if error.__traceback__ is not None:
        error.__traceback__ = error.__traceback__.tb_next


def dressed(wrapper: Callable[..., Any], original: Any) -> Callable[..., Any]:
    """Make a wrapper look like what it wraps."""
    named(wrapper, original).__wrapped__ = original
    # `warnings` passes over frames of the import system when it names the place of a warning.
    wrapper.__code__ = wrapper.__code__.replace(co_filename=UNNAMED)
    _leave_uncompiled(wrapper.__code__)
    return wrapper


def named(one: Any, other: Any) -> Any:
    """Give one the names and the documentation of the other."""
    for name in ("__module__", "__name__", "__qualname__", "__doc__", "__annotations__"):
        try:
            setattr(one, name, getattr(other, name))
        except (AttributeError, TypeError):
            continue
    return one


def _leave_uncompiled(code: Any) -> None:
    """Have torch.compile pass over a function of ours; what it calls is compiled as ever."""
    native: Any = sys.modules.get("torch._C._dynamo.eval_frame")
    if hasattr(native, "skip_code"):  # older versions of torch
        native.skip_code(code)
    elif hasattr(native, "set_code_exec_strategy"):
        action = native._FrameAction
        native.set_code_exec_strategy(code, native._FrameExecStrategy(action.SKIP, action.DEFAULT))


def seen_by(see: Callable[[], None], original: Callable[..., Any]) -> Callable[..., Any]:
    """Return `original` with something before it that sees it is called."""

    def call(*args: Any, **kwargs: Any) -> Any:
        see()
        try:
            return original(*args, **kwargs)
        except BaseException as error:
            drop_frame(error)
            raise

    return dressed(call, original)


def within(
    timeline: Timeline, original: Any, number: int, compiler: Compiler
) -> Callable[..., Any]:
    """Return `original` with a phase around it that is no more than itself."""

    def span(*args: Any, **kwargs: Any) -> Any:
        # The compiler comes first. Where only the length of the step is taken, nobody wants to know
        # its phases.
        is_begun = (
            (compiler.asks is None or not compiler.asks())
            and not timeline.is_light
            and timeline.current in OPEN
            and get_ident() == timeline.owner
        )
        before = timeline.switch(number) if is_begun else number
        try:
            return original(*args, **kwargs)
        except BaseException as error:
            drop_frame(error)
            raise
        finally:
            if is_begun:
                timeline.switch(before)

    return dressed(span, original)


def phase_on(frame: FrameType | None, told: int) -> int:
    """Return the phase of a step that passes by: what the thread's frames tell, or what was told."""
    while frame is not None:
        code = frame.f_code
        if code.co_name == "__next__" and code.co_filename.endswith(LOADERS):
            return DATA
        if code.co_name == "wrapper" and code.co_filename.endswith(OPTIMIZERS):
            return OPTIMIZER
        frame = frame.f_back
    return told


def spanning(
    timeline: Timeline,
    original: Callable[..., Any],
    phase: int,
    compiler: Compiler = NOBODY,
    where: frozenset[int] = OPEN,
) -> Callable[..., Any]:
    """Return `original` with the forward or the backward phase around it, where that may begin.

    A class stands for its `__call__` of the moment: torch.fx and others replace it for a while.
    """
    is_forward = phase == FORWARD
    kept, seen = (~ANSWERED, SEEN_FORWARD) if is_forward else (-1, SEEN_BACKWARD | ANSWERED)
    begins = timeline.forward_begins if is_forward else timeline.backward_begins
    home: Any = original if isinstance(original, type) else None

    def span(*args: Any, **kwargs: Any) -> Any:
        before, passing, is_begun = OTHER, None, False
        if compiler.asks is None or not compiler.asks():
            before, passing = timeline.current, timeline.passing
            is_begun = before in where and get_ident() == timeline.owner
        if (
            is_begun
            and is_forward
            and args
            and not getattr(args[0], "training", True)
            and not timeline.has_gradients()
        ):
            timeline.forward_begins(is_evaluated=True)
        elif is_begun and passing is not None:
            # As `begins` and `ends` do it, without the calls.
            passing.seen = passing.seen & kept | seen
            timeline.current = phase
        elif is_begun:
            begins()
        try:
            return (original if home is None else home.__call__)(*args, **kwargs)
        except BaseException as error:
            drop_frame(error)
            raise
        finally:
            if is_begun:
                if passing is None or timeline.passing is not passing:
                    timeline.forward_ends() if is_forward else timeline.backward_ends(before)
                elif is_forward:
                    timeline.current = timeline.base if passing.seen & ANSWERED else LOSS
                else:
                    timeline.current = FORWARD if before == FORWARD else timeline.base

    return dressed(span, original if home is None else home.__call__)


def asking(
    timeline: Timeline, following: Callable[..., Any], otherwise: Callable[..., Any]
) -> Callable[..., Any]:
    """Return `__next__` for the batches of steps that pass by; others are got `otherwise`."""
    clock = timeline.clock

    def __next__(self: Any) -> Any:
        passing, is_passing = timeline.passing, False
        # No other thread asks the loader that the one we watch has asked.
        if (
            passing is not None
            and passing.at == passing.count
            and passing.giver == id(self)
            and len(passing.ends) < passing.left
            and (now := clock()) < passing.until
        ):
            is_passing = True
            passing.at = passing.seen = 0
            timeline.current = PREPARE
            # Last: an interrupt comes between two calls, and must not find half a step.
            passing.ends.append(now)
        try:
            return following(self) if is_passing else otherwise(self)
        except BaseException as error:
            if is_passing:
                timeline.batch_fails(self)
            drop_frame(error)
            raise

    return dressed(__next__, following)


def around_steps(
    timeline: Timeline,
    compiler: Compiler,
    meet: Callable[[Any], object],
    is_engines: Callable[[], bool] = never,
) -> tuple[Callable[..., None], Callable[..., None]]:
    """Return what PyTorch is to call before and after each step of an optimizer.

    `is_engines` says whether the thread it is asked in runs a backward pass: a device has one of its
    own, in which an optimizer may step while the thread that we watch waits.
    """
    clock = timeline.clock

    def is_within(thread: int) -> bool:
        return timeline.current in WITHIN_BACKWARD and thread != timeline.owner and is_engines()

    def before(optimizer: Any, args: Any, kwargs: Any) -> None:
        if compiler.asks is not None and compiler.asks():
            return
        passing = timeline.passing
        if passing is not None and (not passing.at or passing.order[passing.at] == id(optimizer)):
            return  # whether the first of a step is the one whose turn it is will be seen afterwards
        thread = get_ident()
        if thread == timeline.owner or is_within(thread) or timeline.is_trainer(thread):
            timeline.optimizer_begins(id(optimizer))

    def after(optimizer: Any, args: Any, kwargs: Any) -> None:
        if compiler.asks is not None and compiler.asks():
            return
        passing = timeline.passing
        if passing is not None and passing.order[at := passing.at] == id(optimizer):
            passing.stepped_at = clock()
            passing.at = at + 1
            if timeline.current not in STEPS_WITHIN:
                timeline.current = OTHER
            return
        thread = get_ident()
        if thread != timeline.owner and not is_within(thread):
            return
        if passing is not None:
            timeline.optimizer_begins(id(optimizer))
        is_light = timeline.is_light
        timeline.optimizer_ends(id(optimizer))
        if not is_light:
            meet(optimizer)

    return before, after


def stepping(
    timeline: Timeline,
    original: Callable[..., Any],
    compiler: Compiler,
    key: Callable[..., int] = lambda self, *_, **__: id(self),
) -> Callable[..., Any]:
    """Return a method that takes an optimizer's step, with the step around it."""

    def step(*args: Any, **kwargs: Any) -> Any:
        if compiler.asks is not None and compiler.asks():
            return original(*args, **kwargs)
        is_begun = timeline.is_trainer(get_ident())
        number = key(*args, **kwargs)
        if is_begun:
            timeline.optimizer_begins(number)
        try:
            return original(*args, **kwargs)
        except BaseException as error:
            drop_frame(error)
            raise
        finally:
            if is_begun:
                timeline.optimizer_ends(number)

    return dressed(step, original)
