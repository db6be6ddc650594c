"""What is asked of packing: the source, the target, and what makes one packed data set differ."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from stoker.data.sources.source import NO_HINTS, Hints
from stoker.errors import UsageError
from stoker.units import parse_gib

DEFAULT_SHARD_BYTES, MIN_SHARD_BYTES = 1 << 30, 1 << 10


@dataclass(frozen=True)
class Settings:
    """What makes one packed data set differ from another."""

    container: str = "tar"
    shard_bytes: int = DEFAULT_SHARD_BYTES
    shuffle: int | None = None


def parse_shard_bytes(text: str) -> int:
    """Read the size of a shard.

    >>> parse_shard_bytes("4K")
    4096
    """
    size = int(parse_gib(text) * 2**30)
    if size < MIN_SHARD_BYTES:
        raise UsageError(
            f"`{text}` is no size of a shard",
            why=f"below {MIN_SHARD_BYTES} bytes there would be one for each sample",
            fix="--shard-size 256M, or leave it out",
        )
    return size


class Progress(NamedTuple):
    """How far packing is."""

    samples: int
    bytes: int
    shards: int


Tell = Callable[[Progress], None]


class Order(NamedTuple):
    """What to pack, how, and with how much help."""

    source: Path
    out: Path
    settings: Settings
    hints: Hints = NO_HINTS
    workers: int = 1
    tell: Tell = lambda _: None

    def facts(self, shares: int | None = None) -> dict[str, Any]:
        """Return what must be the same for a packing to be gone on with."""
        hints = {name: str(each) for name, each in self.hints._asdict().items() if each is not None}
        source = str(self.source) if str(self.source) == "-" else str(self.source.resolve())
        facts = {"format": 3, "source": source, **asdict(self.settings), **hints}
        return {**facts, "shares": shares} if shares else facts
