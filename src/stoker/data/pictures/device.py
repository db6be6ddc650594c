"""Decodes JPEGs on the GPU, many at a time, through torchvision (nvJPEG)."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from random import Random
from typing import Any

from stoker.data.pictures.crop import Crop
from stoker.data.pictures.decode import picture_decoder
from stoker.errors import DataError


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
    # Copies, as torch warns of bytes that cannot be written to.
    encoded = [torch.frombuffer(bytearray(each), dtype=torch.uint8) for each in pieces]
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


def cropped(picture: Any, crop: Crop, chance: Random | None) -> Any:
    """Return the piece of a picture on the GPU that a crop chooses."""
    torch = import_module("torch")
    drawn = chance or random.Random(random.getrandbits(64))
    _, height, width = picture.shape
    box = crop.box(height, width, drawn)
    top, left = round(box.top), round(box.left)
    piece = picture[:, top : top + round(box.height), left : left + round(box.width)]
    made = torch.nn.functional.interpolate(
        piece[None].float(), (box.out_height, box.out_width), mode="bilinear", antialias=True
    )[0]
    made = made.round_().clamp_(0, 255).to(torch.uint8)
    return made.flip(-1) if box.is_flipped else made
