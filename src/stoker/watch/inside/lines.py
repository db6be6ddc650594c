"""Which lines of the user's own code the time is spent on, by looking at the stacks now and then."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import CodeType, FrameType

    # File, function and line. Not the code itself: that of equal functions in two files is equal.
    Key = tuple[str, str, int]

# More distinct lines than this in one process and the rarest are forgotten.
MAX_LINES = 2000
# What is told to the scribe.
MAX_TOLD = 150
# How much a look counts whose phase may be another, against one of which it is known.
UNSURE = 1e-3

# Functions of libraries that write a checkpoint: called by a trainer, no line of the user's says so.
SAVERS = frozenset(
    ("save_checkpoint", "_save_checkpoint", "save_state", "save_model", "_save_model",
     "save_pretrained", "save_weights", "save_file")
)  # fmt: skip

# Below this, a forked child has the frames of the parent that forked it.
BOOTSTRAP = os.path.join("multiprocessing", "process.py")

_LIBRARY = tuple(
    {
        os.path.dirname(os.__file__) + os.sep,
        os.path.join(sys.prefix, "lib") + os.sep,
        os.path.join(sys.base_prefix, "lib") + os.sep,
        os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep,
    }
)

# Where compilers write the Python that they run: PyTorch's, unless it is told another folder, and
# TensorFlow's.
_GENERATED = (os.sep + "torchinductor_", os.sep + "__autograph_generated_file")


def is_users(filename: str) -> bool:
    """Say whether a file is the user's own code, not a library's."""
    # A script may have no ending; text that was compiled has no file.
    ending = os.path.splitext(filename)[1] or (".py" if os.path.isfile(filename) else "")
    if filename.startswith("<") or ending != ".py":
        return False
    path = os.path.abspath(filename)
    return (
        "/site-packages/" not in path
        and "/dist-packages/" not in path
        and not path.startswith(_LIBRARY)
        and not _is_generated(path)
    )


def _is_generated(path: str) -> bool:
    folder = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    is_cached = folder is not None and path.startswith(os.path.join(os.path.abspath(folder), ""))
    return is_cached or any(each in path for each in _GENERATED)


class Lines:
    """Counts of stack samples by line: as the innermost line of the user's, and anywhere."""

    def __init__(self) -> None:
        self.samples = 0
        self._users: dict[str, bool] = {}
        # [seconds innermost, seconds anywhere] of each line, and of the first of them by phase.
        self._seconds: dict[Key, list[float]] = {}
        self._phases: dict[Key, dict[int, float]] = {}
        # Seconds in which a library saved, by its file and function.
        self._savers: dict[tuple[str, str], float] = {}

    def add(
        self, frame: FrameType | None, seconds: float, phase: int, is_sure: bool = True
    ) -> None:
        """Count one stack, seen after `seconds` since the last look.

        A phase that is not sure counts where no other was seen.
        """
        self.samples += 1
        users = self._users
        seen: set[Key] = set()
        saver: tuple[str, str] | None = None
        while frame is not None:
            code = frame.f_code
            if code.co_name == "_bootstrap" and code.co_filename.endswith(BOOTSTRAP):
                return
            mine = users.get(code.co_filename)
            if mine is None:
                mine = users[code.co_filename] = is_users(code.co_filename)
            if mine:
                line = frame.f_lineno or code.co_firstlineno
                key = (code.co_filename, code.co_name, line)
                if key not in seen:
                    self._count(key, seconds, not seen)
                    if not seen:
                        phases = self._phases.setdefault(key, {})
                        weight = seconds if is_sure else UNSURE * seconds
                        phases[phase] = phases.get(phase, 0.0) + weight
                    seen.add(key)
            elif code.co_name in SAVERS:
                # The outermost stands for all that it calls.
                saver = (code.co_filename, code.co_name)
            frame = frame.f_back
        if saver is not None:
            self._savers[saver] = self._savers.get(saver, 0.0) + seconds

    def _count(self, key: Key, seconds: float, is_innermost: bool) -> None:
        pair = self._seconds.get(key)
        if pair is None:
            if len(self._seconds) >= MAX_LINES:
                self._forget()
            pair = self._seconds[key] = [0.0, 0.0]
        pair[1] += seconds
        if is_innermost:
            pair[0] += seconds

    def _forget(self) -> None:
        kept = sorted(self._seconds, key=lambda key: self._seconds[key][1], reverse=True)
        for key in kept[MAX_LINES // 2 :]:
            del self._seconds[key]
            self._phases.pop(key, None)

    def saving(self) -> dict[str, object]:
        """Return how long libraries saved, and which function the most; empty if they never did."""
        if not self._savers:
            return {}
        file, function = max(self._savers, key=lambda each: self._savers[each])
        library = file.rpartition("-packages/")[2].partition("/")[0]
        seconds = round(sum(self._savers.values()), 3)
        return {"saving": {"library": library, "function": function, "seconds": seconds}}

    def told(
        self,
        names: tuple[str, ...],
        device: Mapping[tuple[CodeType, int], Mapping[str, object]],
    ) -> list[list[object]]:
        """Return the heaviest lines: file, function, line, own s, total s, phase of most of it.

        What is known of a line on the device comes last.
        """
        seconds = self._seconds
        known = {(code.co_filename, code.co_name, line): facts
                 for (code, line), facts in device.items()}  # fmt: skip
        for key in known:
            seconds.setdefault(key, [0.0, 0.0])
        heaviest = sorted(seconds, key=lambda key: (seconds[key][0], seconds[key][1]), reverse=True)
        told: list[list[object]] = []
        for key in heaviest[:MAX_TOLD]:
            file, function, line = key
            phases = self._phases.get(key, {})
            most = max(phases, key=lambda each: phases[each]) if phases else None
            told.append(
                [
                    os.path.abspath(file),
                    function,
                    line,
                    round(seconds[key][0], 3),
                    round(seconds[key][1], 3),
                    None if most is None or most >= len(names) else names[most],
                    *([known[key]] if key in known else []),
                ]
            )
        return told
