"""Which step is the first of an epoch, told by the loaders that are begun and have no more."""

from __future__ import annotations


class Epochs:
    """The epochs of one loop."""

    def __init__(self) -> None:
        self.count = 0
        # The step in hand is the first of an epoch.
        self.is_first = False
        # So was the one before; and since then a loader had no more.
        self._was_first = self._has_finished = False
        # Loaders that were begun and gave no batch yet.
        self._fresh: set[int] = set()
        # Of loaders that nothing was trained on since they were begun: the totals then, whether the step in
        # hand was an epoch's first, and how many batches they gave.
        self._untrained: dict[int, tuple[list[float], bool, int]] = {}
        self._asked_at: list[float] = []

    def begins(self, loader: int) -> None:
        """The first batch of a loader will be an epoch's first."""
        self._fresh.add(loader)

    def loader_is_asked(self, totals: list[float]) -> None:
        """A loader is asked for its iterator: so much time has passed in the step in hand."""
        self._asked_at = totals[:]

    def loader_is_there(self, loader: int) -> None:
        """The iterator that was asked for is there."""
        self.begins(loader)
        self._untrained[loader] = (self._asked_at, self.is_first, 0)

    def batch_is_there(self, loader: int) -> None:
        """A loader has given a batch."""
        if loader in self._untrained:
            asked_at, was_first, batches = self._untrained[loader]
            self._untrained[loader] = (asked_at, was_first, batches + 1)
        if loader in self._fresh:
            self._fresh.discard(loader)
            self.is_first = True

    def loader_has_no_more(self, loader: int) -> list[float] | None:
        """Return the totals where it was begun if it was read to its end and nothing trained on its batches.

        As where a model is evaluated by another method than its call. A loop that asks one batch ahead
        has yet to train on the only one of a loader.
        """
        self._has_finished = True
        asked_at, was_first, batches = self._untrained.pop(loader, ([], False, 0))
        if batches < 2:
            return None
        self.is_first = was_first
        return asked_at

    def is_trained(self) -> None:
        """The batches that were given are trained on."""
        self._untrained.clear()

    def step_passes(self) -> None:
        """A step is over of which only the length is wanted, as none is that is the first of an epoch."""
        self.is_trained()
        self._was_first = False

    def step_ends(self) -> bool:
        """Count a step; return whether it was the first of an epoch and others are not.

        Where each step is the first of a loader's, that is how steps are: nothing tells them apart. And a
        loader that is begun anew for each batch has no epochs.
        """
        is_first = self.is_first and not self._was_first
        if self.is_first:
            self.count += is_first or self._has_finished
            self._has_finished = False
        self._was_first, self.is_first = self.is_first, False
        return is_first
