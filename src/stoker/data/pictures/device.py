"""Decodes JPEGs on the GPU, many at a time, through torchvision (nvJPEG)."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib import import_module
from itertools import groupby
from random import Random
from typing import Any

from stoker.data.pictures.crop import Box, Crop
from stoker.data.pictures.decode import picture_decoder
from stoker.errors import DataError

# Of pictures that are cropped at once: half a gigabyte of three floats each.
MAX_PIXELS = 1 << 25


def check() -> None:
    """Raise DataError if pictures cannot be decoded on a GPU here."""
    try:
        torch = import_module("torch")
        import_module("torchvision.io")
    except (ImportError, RuntimeError, AttributeError, OSError) as error:
        raise DataError(
            'cannot decode on the GPU (`decode="cuda"`)',
            why=f"torch and torchvision are needed: {error}",
            fix='pip install torch torchvision, or decode="rgb" for the processor',
        ) from None
    if not torch.cuda.is_available():
        raise DataError(
            'cannot decode on the GPU (`decode="cuda"`)',
            why="torch finds no GPU in this process",
            fix='ask for one (--gres=gpu:1), or decode="rgb" for the processor',
        )


def follow() -> Callable[[], None]:
    """Return what makes another thread use the GPU that this thread uses now."""
    cuda = import_module("torch").cuda
    return partial(cuda.set_device, cuda.current_device())


def decode(pieces: Sequence[memoryview]) -> list[Any]:
    """Return the pictures as tensors on the GPU: 3 channels, height, width."""
    if not pieces:
        return []
    torch, vision = import_module("torch"), import_module("torchvision.io")
    # torch warns of bytes that cannot be written to.
    own = (bytearray(each) if each.readonly else each for each in pieces)
    encoded = [torch.frombuffer(each, dtype=torch.uint8) for each in own]
    found: list[Any] = vision.decode_jpeg(encoded, mode=vision.ImageReadMode.RGB, device="cuda")
    return found


def decode_one(piece: memoryview) -> Any:
    """Return one picture; what the GPU does not know is decoded by the processor."""
    try:
        return decode([piece])[0]
    except Exception as error:
        try:
            values = picture_decoder(True, "rgb")(piece)
        except Exception:
            raise error from None
        made = import_module("torch").from_numpy(values).permute(2, 0, 1)
        return made.to("cuda", non_blocking=False)


def cropped(pictures: Sequence[Any], crop: Crop, chances: Sequence[Random | None]) -> Iterator[Any]:
    """Yield the piece of each picture that a crop chooses, many made at once."""
    wanted = []
    for picture, chance in zip(pictures, chances, strict=True):
        drawn = chance or random.Random(random.getrandbits(64))
        _, height, width = picture.shape
        box = crop.box(height, width, drawn)
        top, left = round(box.top), round(box.left)
        bottom, right = top + max(1, round(box.height)), left + max(1, round(box.width))
        wanted.append((picture[:, top:bottom, left:right], box))
    for together in _grouped(wanted):
        pieces, boxes = zip(*together, strict=True)
        yield from _resized(pieces, boxes)


def _grouped(wanted: Sequence[tuple[Any, Box]]) -> Iterator[list[tuple[Any, Box]]]:
    """Yield pieces that come out in one size, as many as a bounded memory holds."""
    for _, alike in groupby(wanted, key=lambda each: (each[1].out_height, each[1].out_width)):
        together: list[tuple[Any, Box]] = []
        height = width = 0
        for piece, box in alike:
            height, width = max(height, piece.shape[1]), max(width, piece.shape[2])
            if together and (len(together) + 1) * height * width > MAX_PIXELS:
                yield together
                together, (height, width) = [], piece.shape[1:]
            together.append((piece, box))
        yield together


def _resized(pieces: Sequence[Any], boxes: Sequence[Box]) -> Any:
    """Return pieces of any sizes in one size, as one tensor.

    What `interpolate(mode="bilinear", antialias=True)` computes, but of all pieces by the same few
    kernels: each row and column of the result is a weighted sum of those of its piece.
    """
    torch = import_module("torch")
    height, width = (max(each.shape[axis] for each in pieces) for axis in (1, 2))
    # One copy of a few numbers, from pinned memory: nothing here waits for the GPU.
    told = torch.tensor([[*each.shape[1:], box.is_flipped] for each, box in zip(pieces, boxes, strict=True)],
                        dtype=torch.float32)  # fmt: skip
    place = pieces[0].device
    told = told.pin_memory().to(place, non_blocking=True) if place.type == "cuda" else told
    whole = pieces[0].new_zeros((len(pieces), pieces[0].shape[0], height, width))
    for at, piece in enumerate(pieces):
        whole[at, :, : piece.shape[1], : piece.shape[2]] = piece
    rows = _weights(torch, told[:, 0], height, boxes[0].out_height)
    columns = _weights(torch, told[:, 1], width, boxes[0].out_width)
    columns = torch.where(told[:, 2, None, None] > 0, columns.flip(1), columns)
    # Whoever asks for a batch may compute with fewer digits.
    with torch.autocast(place.type, enabled=False):
        made = rows[:, None] @ (whole.float() @ columns[:, None].transpose(2, 3))
    return made.round_().clamp_(0, 255).to(torch.uint8)


def _weights(torch: Any, sizes: Any, most: int, wanted: int) -> Any:
    """Return how much each of a piece's lines, of `most` at most, counts in each of those wanted."""
    scales = (sizes / wanted)[:, None, None]
    middles = (torch.arange(wanted, device=sizes.device) + 0.5)[:, None] * scales
    lines = torch.arange(most, device=sizes.device) + 0.5
    weights = (1 - (lines - middles).abs() / scales.clamp(min=1)).clamp_(min=0)
    weights *= lines < sizes[:, None, None]
    return weights / weights.sum(-1, keepdim=True)
