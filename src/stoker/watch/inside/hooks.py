"""Which modules are waited for, and how a function of theirs is wrapped."""

from __future__ import annotations

import sys
from _thread import get_ident

from .passing import ANSWERED, SEEN_BACKWARD, SEEN_FORWARD
from .timeline import FORWARD, LOSS, OPEN, OTHER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .process import Watched
    from .timeline import Timeline


UNNAMED = "<stoker importlib._bootstrap>"


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


def drop_frame(error: BaseException) -> None:
    """Take our own frame out of the traceback: it reads as without us (Python 3.11 and newer)."""
    if error.__traceback__ is not None:
        error.__traceback__ = error.__traceback__.tb_next


def dressed(wrapper: Callable[..., Any], original: Any) -> Callable[..., Any]:
    """Give a wrapper the names and the documentation of what it wraps."""
    for name in ("__module__", "__name__", "__qualname__", "__doc__", "__annotations__"):
        try:
            setattr(wrapper, name, getattr(original, name))
        except (AttributeError, TypeError):
            continue
    wrapper.__wrapped__ = original  # type: ignore[attr-defined]
    # `warnings` passes over frames of the import system when it names the place of a warning.
    wrapper.__code__ = wrapper.__code__.replace(co_filename=UNNAMED)
    _leave_uncompiled(wrapper.__code__)
    return wrapper


def _leave_uncompiled(code: Any) -> None:
    """Have torch.compile pass over a function of ours; what it calls is compiled as ever."""
    native: Any = sys.modules.get("torch._C._dynamo.eval_frame")
    if hasattr(native, "skip_code"):  # older versions of torch
        native.skip_code(code)
    elif hasattr(native, "set_code_exec_strategy"):
        action = native._FrameAction
        native.set_code_exec_strategy(code, native._FrameExecStrategy(action.SKIP, action.DEFAULT))


def within(
    timeline: Timeline, original: Any, number: int, is_compiling: Callable[[], bool]
) -> Callable[..., Any]:
    """Return `original` with a phase around it that is no more than itself."""

    def span(*args: Any, **kwargs: Any) -> Any:
        # Asked first: a compiler that follows this is to see nothing that changes. Where only the
        # length of the step is taken, nobody asks for its phases.
        is_begun = (
            not is_compiling()
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


def spanning(
    timeline: Timeline,
    original: Callable[..., Any],
    phase: int,
    is_compiling: Callable[[], bool] = never,
    where: frozenset[int] = OPEN,
) -> Callable[..., Any]:
    """Return `original` with the forward or the backward phase around it, where that may begin.

    A class stands for its `__call__` of the moment: torch.fx and others replace it for a while.
    """
    is_forward = phase == FORWARD
    kept, seen = (~ANSWERED, SEEN_FORWARD) if is_forward else (-1, SEEN_BACKWARD | ANSWERED)
    begins = timeline.forward_begins if is_forward else timeline.backward_begins
    ends = timeline.forward_ends if is_forward else timeline.backward_ends
    home: Any = original if isinstance(original, type) else None

    def span(*args: Any, **kwargs: Any) -> Any:
        before, passing, is_begun = OTHER, None, False
        # Asked first: a compiler that follows this is to see nothing that changes.
        if not is_compiling():
            before, passing = timeline.current, timeline.passing
            is_begun = before in where and get_ident() == timeline.owner
        if is_begun and passing is not None:
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
                if passing is None or timeline.passing is None:
                    ends()
                elif is_forward:
                    timeline.current = timeline.base if passing.seen & ANSWERED else LOSS
                else:
                    timeline.current = FORWARD if before == FORWARD else timeline.base

    return dressed(span, original if home is None else home.__call__)


def stepping(
    timeline: Timeline,
    original: Callable[..., Any],
    is_compiling: Callable[[], bool],
    key: Callable[..., int] = lambda self, *_: id(self),
) -> Callable[..., Any]:
    """Return a method that takes an optimizer's step, with the step around it."""

    def step(*args: Any, **kwargs: Any) -> Any:
        if is_compiling():
            return original(*args, **kwargs)
        is_begun = timeline.is_trainer(get_ident())
        number = key(*args)
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
