"""Delays of known length for training loops, and what they came to, in any framework.

A delay sits where real programs lose time. What was planted is counted as it happens, since a
sleep may last longer than was asked for; loader workers count in memory shared with the loop.
"""

import json
import multiprocessing
import statistics
import time
from itertools import pairwise

BATCH = 4
FEATURES = 64
CLASSES = 10
MAX_WORKERS = 16
PLACES = (
    "item", "collate", "transfer", "forward", "backward", "optimizer", "between", "comm", "late"
)  # fmt: skip
COUNTED = (*PLACES, "eval.transfer", "eval.forward")
# The loop's own clock leaves warm-up out, as Stoker does: the first three steps, and of the first
# twenty those that follow them and take twice as long as the best before, until three are alike.
SETTLED = 2
LATEST = 20


class Delays:
    """The delays of this program, and what they came to."""

    # A sleep ends late by up to this; the rest is spent turning round.
    late_s = 0.0003

    def __init__(self):
        self.ms = dict.fromkeys(PLACES, 0.0)
        self.is_busy = self.is_evaluating = False
        # Seconds and calls, by place, for the loop itself and for each worker.
        self.spent = {
            each: multiprocessing.Array("d", 2 * MAX_WORKERS, lock=False) for each in COUNTED
        }
        self.ticks = []
        self.waits = []
        # Calls that are a whole step but for what comes after them: without their wait for a batch.
        self.calls = []
        self.ends = []
        self.breaks = set()

    def at(self, place):
        """Lose the time that is planted here."""
        self._lose(place, self.ms[place] / 1000)

    def item(self):
        """Lose one item's share of the time planted in a batch's items."""
        self._lose("item", self.ms["item"] / 1000 / BATCH)

    def _lose(self, place, seconds):
        began = time.perf_counter()
        if seconds:
            if not self.is_busy:
                time.sleep(max(0.0, seconds - self.late_s))
            while time.perf_counter() - began < seconds:
                pass
        self.count(place, time.perf_counter() - began if seconds else 0.0)

    def worker(self):
        """Return the number of the worker process that this is; None in the loop itself."""
        return None

    def count(self, place, seconds):
        worker = self.worker()
        slot = 0 if worker is None else 2 * (worker + 1)
        place = self._counted_as(place) if worker is None else place
        self.spent[place][slot] += seconds
        self.spent[place][slot + 1] += 1

    def _counted_as(self, place):
        return f"eval.{place}" if self.is_evaluating and f"eval.{place}" in self.spent else place

    def tick(self):
        """A step is over."""
        self.ticks.append(time.perf_counter())

    def waited(self, wait):
        """A batch came; at the end `wait` says after how many seconds."""
        if self.worker() is None and not self.is_evaluating:
            self.waits.append((len(self.ticks), wait))

    def ended(self, seconds):
        """A loader had no more batches, which took so many seconds to say."""
        if self.worker() is None and not self.is_evaluating:
            self.ends.append((len(self.ticks), seconds))

    def epoch(self):
        """A new epoch begins: the step that follows is not like the others."""
        self.breaks.add(len(self.ticks))

    def told(self, **more):
        """Return what was planted, and the loop's own clock, as one line of JSON."""
        lengths = self._lengths()
        kept = {
            index: lengths[index - 1]
            for index in range(warm_at(lengths), len(self.ticks))
            if index not in self.breaks
        }
        waits = sum(wait() for index, wait in self.waits if index in kept)
        calls = sum(seconds for index, seconds in self.calls if index in kept)
        spent = {each: (sum(array[0::2]), sum(array[1::2])) for each, array in self.spent.items()}
        told = {
            "planted": spent,
            "steps": len(self.ticks),
            "step_ms": 1000 * statistics.fmean(kept.values()),
            "wait_ms": 1000 * waits / len(kept),
            "call_ms": 1000 * calls / len(kept) if self.calls else None,
        }
        return json.dumps({**told, **more})

    def _lengths(self):
        """Return what lies between two ticks each, less the time in which a loader ended.

        Loaders that fetch one batch ahead end, and wait for their workers, before the last step.
        """
        lengths = [after - before for before, after in pairwise(self.ticks)]
        for index, seconds in self.ends:
            if 0 < index <= len(lengths):
                lengths[index - 1] -= seconds
        return lengths


def warm_at(lengths):
    """Return the first step whose length counts."""
    for index in range(SETTLED, min(LATEST, len(lengths))):
        lately = lengths[index - 2 : index + 1]
        if lengths[index] <= 2 * min(lengths[:index]) or max(lately) <= 1.5 * min(lately):
            return index + 1
    return min(LATEST, len(lengths))
