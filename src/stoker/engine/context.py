"""What a training can ask about the job it runs in. Imported by the user's script: few imports."""

from __future__ import annotations

import os
import signal
import sys
import threading
from functools import cached_property, lru_cache
from importlib import import_module
from types import FrameType

from stoker.engine.place import number, read_place

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from stoker.engine.checkpoint import Checkpoint
    from stoker.engine.group import Group

# Reading Python and PyTorch from a shared disk can keep a rank from coming for most of a minute.
MEET_S = 120.0
BARRIER_S = 600.0


class Context:
    """One process of a training: its place among the ranks, and whether it should come to an end."""

    def __init__(self) -> None:
        self._place = place = read_place(os.environ)
        self.rank, self.world_size = place.rank, place.world_size
        self.local_rank, self.local_size = place.local_rank, place.local_size
        # Which machine of the job this is, and who started us.
        self.node, self.launcher = place.node, place.launcher
        self.master_addr, self.master_port = place.master_addr, place.master_port
        # How often Slurm has started this job again.
        self.restarts = number(os.environ, "SLURM_RESTART_COUNT") or 0
        self._group: Group | None = None
        self._owns_group = False
        self._is_told = False
        # Only the first thread of a program may say how it takes a signal.
        if threading.current_thread() is threading.main_thread():
            is_second = os.environ.get("STOKER_SIGNAL") == "USR2"
            heard = signal.SIGUSR2 if is_second else signal.SIGUSR1
            self._before = signal.signal(heard, self._hear)

    @property
    def is_main(self) -> bool:
        """Whether this is the process that prints and saves."""
        return self.rank == 0

    @cached_property
    def device(self) -> str:
        """The device of this rank, as PyTorch writes it: `cuda:1`, or `cpu`."""
        gpus = _gpus()
        # Where each task is bound to GPUs of its own, they are numbered from 0 in every one.
        return f"cuda:{self.local_rank % gpus}" if gpus else "cpu"

    @property
    def backend(self) -> str:
        """What carries the collectives: `nccl` on GPUs (NVIDIA's, and AMD's RCCL), else `gloo`."""
        return "nccl" if self.device != "cpu" else "gloo"

    def init(self, backend: str | None = None, timeout_s: float = MEET_S) -> Context:
        """Start PyTorch's process group, once; a rank that does not come in time is named."""
        if self._group is None:
            from stoker.engine.process_group import start

            self._group, self._owns_group = start(self, self._place, backend, timeout_s)
        return self

    def barrier(self, timeout_s: float = BARRIER_S) -> None:
        """Wait for all ranks; those that do not come in time are named."""
        if self.world_size > 1:
            self.init()._met().barrier(timeout_s)

    @property
    def should_stop(self) -> bool:
        """Whether the time limit is near: write a checkpoint and end.

        After `init()` all ranks get the same answer at the same step, also where only one of them
        was told; so ask in each step, on every rank.
        """
        if self._group is None or self.world_size == 1:
            return self._is_told
        # The main rank may ask at other places as well: each is counted by itself.
        frame = sys._getframe(1)
        code = frame.f_code
        asker = f"{os.path.basename(code.co_filename)}:{code.co_firstlineno}:{frame.f_lasti}"  # noqa: PTH119
        return self._group.agree_to_stop(self._is_told, asker)

    @cached_property
    def checkpoint(self) -> Checkpoint:
        """Saves and loads checkpoints."""
        from stoker.engine.checkpoint import Checkpoint

        return Checkpoint(self)

    def print_main(self, *words: object, **options: Any) -> None:
        """Print from the main rank only, at once."""
        if self.is_main:
            print(*words, **{"flush": True, **options})

    def told_by_main(self, word: str, timeout_s: float = BARRIER_S) -> str:
        """Return what rank 0 gives here, on every rank; before `init()`, what one gives oneself."""
        if self._group is None or self.world_size == 1:
            return word
        return self._group.told_by_main(word, timeout_s)

    def close(self) -> None:
        """End the process group that `init()` started; at the end of a script, also after an error."""
        group, self._group = self._group, None
        if group is not None and self._owns_group:
            from stoker.engine.process_group import end

            end()

    def _met(self) -> Group:
        assert self._group is not None
        return self._group

    def _hear(self, number: int, frame: FrameType | None) -> None:
        self._is_told = True
        if callable(self._before):
            self._before(number, frame)


def _gpus() -> int:
    """Return how many GPUs this process sees: PyTorch knows; without it, the devices are counted."""
    others = any(name in sys.modules for name in ("tensorflow", "jax"))
    if "torch" in sys.modules or not others:
        try:
            torch = import_module("torch")
            return int(torch.cuda.device_count()) if torch.cuda.is_available() else 0
        except ImportError:
            pass
    for name in ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
        if name in os.environ:
            told = [each.strip() for each in os.environ[name].split(",")]
            return len([each for each in told if each not in ("", "-1")])
    return sum(name[6:].isdecimal() for name in os.listdir("/dev") if name.startswith("nvidia"))  # noqa: PTH208


@lru_cache(maxsize=1)
def context() -> Context:
    """Return this process of the training; the first call begins to listen for the time limit."""
    return Context()
