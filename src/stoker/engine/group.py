"""The ranks of a training meet: who is there, who is missing, and what they agree on.

They meet in a store of PyTorch's (a small key-value server beside rank 0, or torchrun's own), so
that a rank which does not come is named instead of waited for.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from datetime import timedelta
from typing import Any

from stoker.errors import StokerError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from stoker.engine.place import Place

# How long ranks that are there may take to hear that others are not.
TELL_S = 5.0
# Between two looks whether all have come.
LOOK_S = 0.05
# The ranks ask about this often whether one of them was told to stop.
AGREE_S = 1.0
NAMED = 8
STOP = "told to stop"


class GroupError(StokerError):
    """The ranks of a training do not come together."""


class Group:
    """All ranks of a training, once they have met."""

    def __init__(self, store: Any, place: Place) -> None:
        self._store, self._place = store, place
        self._barriers = self._told = 0
        self._questions: dict[str, Question] = {}
        self._has_told = False

    def barrier(self, timeout_s: float) -> None:
        """Wait until all ranks are here; those that are not are named."""
        size, rank = self._place.world_size, self._place.rank
        self._barriers += 1
        key = f"barrier/{self._barriers}"
        try:
            self._store.set(f"{key}/{rank}", where())
            if self._store.add(key, 1) == size:
                self._store.set(f"{key}/all", "")
            self._store.wait([f"{key}/all"], timedelta(seconds=timeout_s))
        except Exception:
            missing = absent(self._store, key, size)
            if not missing:
                return
            raise GroupError(
                f"{name_ranks(missing, size)} did not reach barrier {self._barriers} "
                f"within {timeout_s:g} s",
                why="a rank that has failed, or does other work than the rest, is never there",
                fix="look at the end of its output; every rank must call barrier() equally often",
            ) from None
        # Everybody has left the one before the last.
        before = f"barrier/{self._barriers - 2}"
        with suppress(Exception):
            self._store.delete_key(f"{before}/{rank}")
            for each in ("", "/all", "/left", "/gone") if rank == 0 else ():
                self._store.delete_key(f"{before}{each}")
        self._leave(key)

    def _leave(self, key: str) -> None:
        """Go on after all have looked at a key, rank 0 as the last: the store ends with it."""
        size, rank = self._place.world_size, self._place.rank
        with suppress(Exception):  # whether the others are still there is the next one's matter
            if rank and self._store.add(f"{key}/left", 1) == size - 1:
                self._store.set(f"{key}/gone", "")
            if rank == 0 and size > 1:
                self._store.wait([f"{key}/gone"], timedelta(seconds=TELL_S))

    def agree_to_stop(self, is_told: bool, asker: str) -> bool:
        """Say whether all ranks stop at this call of this asker, a place in the script."""
        question = self._questions.setdefault(asker, Question(self._store, asker))
        try:
            if is_told and not self._has_told:
                # Whoever is slower than the rest never decides, but is heard.
                self._has_told = True
                self._store.set(STOP, "")
            was_stopped = question.is_stopped
            if question.ask() and not was_stopped:
                self._leave(f"stop/{asker}")
            return question.is_stopped
        except Exception:
            # Rank 0 is gone, and its store with it: nobody is left to agree with.
            return is_told

    def told_by_main(self, word: str, timeout_s: float) -> str:
        """Return what rank 0 says here; the others wait for it."""
        self._told += 1
        key = f"told/{self._told}"
        if self._place.rank == 0:
            # A path may have bytes that are no text.
            self._store.set(key, word.encode("utf-8", "surrogateescape"))
            self._leave(key)
            return word
        try:
            self._store.wait([key], timedelta(seconds=timeout_s))
            told = self._store.get(key)
        except Exception:
            raise GroupError(
                f"rank 0 said nothing within {timeout_s:g} s",
                why="what all ranks must know alike is looked up by rank 0",
                fix="look at the output of rank 0; every rank must make this call",
            ) from None
        self._leave(key)
        return str(told, "utf-8", "surrogateescape")


class Question:
    """Whether to stop, asked again and again at one place of a script, on all ranks alike.

    Only some calls are decided, about one a second, by the first rank that comes to them. Each
    decision says which call is decided next.
    """

    def __init__(self, store: Any, asker: str) -> None:
        self._store, self._asker = store, asker
        self._calls, self._next_call = 0, 1
        self._decided: tuple[int, float] | None = None
        self.is_stopped = False

    def ask(self) -> bool:
        """Return what was decided for this call."""
        self._calls += 1
        if not self.is_stopped and self._calls >= self._next_call:
            wish = [bool(self._store.check([STOP])), self._calls + self._interval()]
            key = f"stop/{self._asker}/{self._calls}"
            word = json.loads(self._store.compare_set(key, "", json.dumps(wish)))
            self.is_stopped, self._next_call = bool(word[0]), int(word[1])
        return self.is_stopped

    def _interval(self) -> int:
        """Return how many calls make about a second."""
        now = time.monotonic()
        before, self._decided = self._decided, (self._calls, now)
        if before is None:
            return 1
        calls = self._calls - before[0]
        # Steps may become slower: never more than twice as many as before.
        return max(1, min(int(AGREE_S * calls / max(1e-6, now - before[1])), 2 * calls))


# Where this process has met the others: all have as often.
_meetings: list[str] = []


def meet(torch: Any, place: Place, timeout_s: float) -> Any:
    """Return a store in which all ranks have written their names, or say which are missing."""
    if place.world_size == 1:
        return torch.distributed.HashStore()
    outer = _open_store(torch, place, timeout_s)
    # A job that torchrun starts again meets in the same store, and so do ranks that have parted.
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    prefix = f"stoker/{attempt}/{len(_meetings)}"
    store = torch.distributed.PrefixStore(prefix, outer)
    _come(store, place)
    if place.rank == 0:
        _count(store, place, timeout_s)
    else:
        _hear(store, place, timeout_s)
    # A meeting to which somebody did not come is tried again.
    _meetings.append(prefix)
    return store


def _open_store(torch: Any, place: Place, timeout_s: float) -> Any:
    address, port = place.master_addr, place.master_port
    if address is None or port is None:
        missing = " and ".join(
            name for name, value in (("MASTER_ADDR", address), ("MASTER_PORT", port)) if not value
        )
        raise GroupError(
            f"nobody says where rank 0 is: {missing} not set",
            why=f"what started us ({place.launcher}) gives a rank its number, not where the others are",
            fix="export MASTER_ADDR=<host of rank 0> MASTER_PORT=<a free port>; "
            "mpirun passes them on with -x",
        )
    # torchrun has a store of its own, to which all ranks are guests.
    is_host = place.rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    try:
        return torch.distributed.TCPStore(
            address, port, place.world_size, is_host, timedelta(seconds=timeout_s),
            wait_for_workers=False,
        )  # fmt: skip
    except Exception as error:
        if is_host:
            raise GroupError(
                f"rank 0 cannot listen at port {port}",
                why=f"{_first_line(error)}; two processes may both be rank 0",
                fix="export MASTER_PORT=<another port>, and see that each rank has its own RANK",
            ) from None
        raise GroupError(
            f"rank 0 of {place.world_size} is missing: nothing answers at {address}:{port} "
            f"for {timeout_s:g} s",
            why="rank 0 keeps the list of all ranks; it has failed, was not started, "
            "or is on another machine",
            fix="look at the output of rank 0; MASTER_ADDR must be the host it runs on",
        ) from None


def _come(store: Any, place: Place) -> None:
    """Write our name; refuse a second process of the same rank, and another idea of the world."""
    first = str(store.compare_set(f"here/{place.rank}", "", where()), "utf-8")
    if first != where():
        raise GroupError(
            f"two processes are rank {place.rank} of {place.world_size}: {where()} and {first}",
            why="rank variables that are filled in by the batch script, not by each task, "
            "are the same everywhere",
            fix="take RANK out of the environment, or set it inside `srun bash -c '…'`",
        )
    size = str(store.compare_set("world", "", str(place.world_size)), "utf-8")
    if size != str(place.world_size):
        raise GroupError(
            f"rank {place.rank} was told of {place.world_size} ranks, another one of {size}",
            why="the ranks were started by two launchers, or with different WORLD_SIZE",
            fix="start all ranks with one command: stoker run --procs N, srun, or torchrun",
        )


def _count(store: Any, place: Place, timeout_s: float) -> None:
    """As rank 0: wait for all, and tell those that are here who is not."""
    deadline = time.monotonic() + timeout_s
    missing = list(range(place.world_size))
    while missing := [rank for rank in missing if not store.check([f"here/{rank}"])]:
        if time.monotonic() > deadline:
            break
        time.sleep(LOOK_S)
    store.set("missing", json.dumps(missing))
    if not missing:
        return
    present = set(range(1, place.world_size)) - set(missing)
    # The store ends with us: let the others read first.
    until = time.monotonic() + TELL_S
    while time.monotonic() < until and not all(store.check([f"heard/{rank}"]) for rank in present):
        time.sleep(LOOK_S)
    raise _missing(missing, place, timeout_s)


def _hear(store: Any, place: Place, timeout_s: float) -> None:
    """As another rank: hear from rank 0 whether all are here."""
    try:
        store.wait(["missing"], timedelta(seconds=timeout_s + 2 * TELL_S))
        missing = json.loads(store.get("missing"))
    except Exception:
        missing = absent(store, "here", place.world_size) or [0]
    if missing:
        with suppress(Exception):
            store.set(f"heard/{place.rank}", "")
        raise _missing(missing, place, timeout_s)


def _missing(missing: Sequence[int], place: Place, timeout_s: float) -> GroupError:
    there = place.world_size - len(missing)
    return GroupError(
        f"{name_ranks(missing, place.world_size)} did not come within {timeout_s:g} s",
        why=f"{there} of {place.world_size} met at {place.master_addr}:{place.master_port}; "
        "the rest failed before init(), were never started, or cannot reach that address",
        fix="look at the output of those ranks first; init(timeout_s=…) waits longer",
    )


def absent(store: Any, key: str, size: int) -> list[int]:
    """Return the ranks that have not written their name under a key."""
    try:
        return [rank for rank in range(size) if not store.check([f"{key}/{rank}"])]
    except Exception:
        # The store is gone, and it was with rank 0.
        return [0]


def name_ranks(ranks: Sequence[int], size: int) -> str:
    """Return ranks as words.

    >>> name_ranks([3], 4), name_ranks([1, 2], 4)
    ('rank 3 of 4', 'ranks 1, 2 of 4')
    """
    shown = ", ".join(map(str, ranks[:NAMED]))
    more = f" and {len(ranks) - NAMED} more" if len(ranks) > NAMED else ""
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {shown}{more} of {size}"


def where() -> str:
    """Return this process as others would look for it."""
    return f"process {os.getpid()} on {os.uname().nodename}"


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
