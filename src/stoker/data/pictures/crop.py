"""Which piece of a picture is wanted, and how large: known before the picture is decoded."""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random
from typing import NamedTuple, Protocol

# How often a crop of the wished area and shape is tried before the middle is taken.
ATTEMPTS = 10


class Box(NamedTuple):
    """A piece of a picture, in its pixels; and the height and width that it is brought to."""

    top: float
    left: float
    height: float
    width: float
    out_height: int
    out_width: int
    is_flipped: bool = False

    @property
    def factor(self) -> int:
        """By how much a decoder may shrink the picture, so that the piece is still large enough."""
        room = min(self.height / self.out_height, self.width / self.out_width)
        return next(each for each in (8, 4, 2, 1) if each <= max(1, room))


class Crop(Protocol):
    """Something that chooses a box."""

    @property
    def is_random(self) -> bool:
        """Whether it chooses another box each time."""

    def box(self, height: int, width: int, chance: Random) -> Box:
        """Return what is wanted of a picture of this size."""


@dataclass(frozen=True)
class RandomResizedCrop:
    """A random piece of a picture, brought to one size: the usual way to train on ImageNet.

    `scale` is the share of the picture's area, `ratio` width by height; `flip` is how probable it
    is that left and right are exchanged.
    """

    size: int | tuple[int, int]
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float = 0.0
    is_random = True

    def box(self, height: int, width: int, chance: Random) -> Box:
        """Return a box of random area, shape and place."""
        inner_height, inner_width = self._inner(height, width, chance)
        top = chance.randint(0, height - inner_height)
        left = chance.randint(0, width - inner_width)
        is_flipped = chance.random() < self.flip
        return Box(top, left, inner_height, inner_width, *_pair(self.size), is_flipped)

    def _inner(self, height: int, width: int, chance: Random) -> tuple[int, int]:
        for _ in range(ATTEMPTS):
            area = height * width * chance.uniform(*self.scale)
            ratio = math.exp(chance.uniform(*map(math.log, self.ratio)))
            wide, high = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if 0 < wide <= width and 0 < high <= height:
                return high, wide
        low, high_ratio = self.ratio
        ratio = min(max(width / height, low), high_ratio)
        return (
            max(1, min(height, round(width / ratio))),
            max(1, min(width, round(height * ratio))),
        )


@dataclass(frozen=True)
class CenterCrop:
    """The middle of a picture whose shorter side was brought to `resize` before.

    `CenterCrop(224, resize=256)` is the usual way to validate on ImageNet. Without `resize` the
    picture keeps its size. One that is too small is enlarged.
    """

    size: int | tuple[int, int]
    resize: int | None = None
    is_random = False

    def box(self, height: int, width: int, chance: Random) -> Box:
        """Return the middle."""
        out_height, out_width = _pair(self.size)
        scale = min(height, width) / self.resize if self.resize else 1
        scale = min(scale, height / out_height, width / out_width)
        inner_height = min(height, out_height * scale)
        inner_width = min(width, out_width * scale)
        top, left = (height - inner_height) / 2, (width - inner_width) / 2
        return Box(top, left, inner_height, inner_width, out_height, out_width)


@dataclass(frozen=True)
class Resize:
    """The whole picture, brought to a height and width; of one number: its shorter side."""

    size: int | tuple[int, int]
    is_random = False

    def box(self, height: int, width: int, chance: Random) -> Box:
        """Return the whole."""
        if isinstance(self.size, tuple):
            return Box(0, 0, height, width, *self.size)
        scale = self.size / min(height, width)
        shape = max(1, round(height * scale)), max(1, round(width * scale))
        return Box(0, 0, height, width, *shape)


def _pair(size: int | tuple[int, int]) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else size
