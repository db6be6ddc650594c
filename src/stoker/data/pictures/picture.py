"""Decodes a picture no larger than needed, and takes the piece that is wanted out of it.

A JPEG is made of blocks of 8 × 8 pixels: decoded at a half, a quarter or an eighth of its size, it
takes a fraction of the time. In C, blocks outside of the piece are left out as well; with other
libraries the picture is decoded, then cut. Either way the pixels are the same.
"""

from __future__ import annotations

import io
import math
import random
from collections.abc import Callable
from functools import lru_cache, partial
from random import Random
from typing import Any

from stoker.data.pictures.crop import Box, Crop
from stoker.data.pictures.decode import (
    CHANNELS,
    COMPILED,
    JPEG,
    Decoder,
    Room,
    decoder,
    first_of,
    forgiving,
    is_picture,
    library,
    pixels,
    places,
)

# Says what is wanted of a picture of some height and width.
Choose = Callable[[int, int], Box]
Reader = Callable[[memoryview, Choose], tuple[Any, Box]]
Cropper = Callable[[memoryview, Choose, Room | None], Any]


def read_cropped(  # noqa: PLR0913  what a data set knows of a part
    data: memoryview,
    crop: Crop,
    chance: Random | None,
    *,
    name: str = "jpg",
    mode: str = "rgb",
    decode: Decoder | None = None,
    room: Room | None = None,
) -> Any:
    """Return the piece of an encoded picture that a crop chooses, as an array.

    A decoder of the user's own decodes it whole.
    """
    drawn = chance or random.Random(random.getrandbits(64))
    chosen: list[Box] = []

    def choose(height: int, width: int) -> Box:
        if not chosen:  # Who tries once more is to get the same.
            chosen.append(crop.box(height, width, drawn))
        return chosen[0]

    if decode is None and is_picture(name, JPEG):
        return cropper(mode)(data, choose, room)
    picture = (decode or decoder(name, mode=mode))(data)
    return cut(picture, choose(*picture.shape[:2]), room)


def cut(picture: Any, box: Box, room: Room | None = None) -> Any:
    """Return the piece of an array that a box describes, brought to its size."""
    numpy, image = library("numpy", "a picture"), library("PIL.Image", "a picture to be resized")
    # What is outside of the box is not to be copied.
    top, left = int(box.top), int(box.left)
    bottom, right = math.ceil(box.top + box.height), math.ceil(box.left + box.width)
    piece = image.fromarray(numpy.ascontiguousarray(picture[top:bottom, left:right]))
    start, end = box.left - left, min(box.left - left + box.width, piece.width)
    upper, lower = box.top - top, min(box.top - top + box.height, piece.height)
    # Columns first, then rows: which comes first in one call depends on Pillow's version.
    bilinear = image.Resampling.BILINEAR
    narrow = piece.resize(
        (box.out_width, piece.height), bilinear, box=(start, 0, end, piece.height)
    )
    made = numpy.asarray(
        narrow.resize(
            (box.out_width, box.out_height), bilinear, box=(0, upper, box.out_width, lower)
        )
    )
    turned = made[:, ::-1] if box.is_flipped else made
    place = places()(turned.shape, room)
    place[...] = turned
    return place


def _compiled(module: Any, mode: str) -> Cropper:
    channels, place_for = CHANNELS[mode], places()
    count = math.prod(channels)

    def crop(data: memoryview, choose: Choose, room: Room | None) -> Any:
        box = choose(*module.header(data))
        place = place_for((box.out_height, box.out_width, *channels), room)
        module.crop(data, place, count, box, box.factor)
        return place

    return crop


def _fitted(box: Box, height: int, width: int, picture: Any) -> Box:
    """Return the box in the pixels of a picture that was decoded smaller."""
    down, across = picture.shape[0] / height, picture.shape[1] / width
    return box._replace(
        top=box.top * down,
        left=box.left * across,
        height=box.height * down,
        width=box.width * across,
    )


def _simplejpeg(module: Any, mode: str) -> Reader:
    def read(data: memoryview, choose: Choose) -> tuple[Any, Box]:
        height, width, *_ = module.decode_jpeg_header(data)
        box = choose(height, width)
        smallest = -(-height // box.factor), -(-width // box.factor)
        picture = module.decode_jpeg(
            data, mode.upper(), min_height=smallest[0], min_width=smallest[1]
        )
        return _flat(picture, mode), _fitted(box, height, width, picture)

    return read


def _turbojpeg(module: Any, mode: str) -> Reader:
    turbo = module.TurboJPEG()

    def read(data: memoryview, choose: Choose) -> tuple[Any, Box]:
        width, height, *_ = turbo.decode_header(bytes(data))
        box = choose(height, width)
        wanted = getattr(module, f"TJPF_{mode.upper()}")
        picture = turbo.decode(bytes(data), pixel_format=wanted, scaling_factor=(1, box.factor))
        return _flat(picture, mode), _fitted(box, height, width, picture)

    return read


def _pillow(module: Any, mode: str) -> Reader:
    def read(data: memoryview, choose: Choose) -> tuple[Any, Box]:
        with module.open(io.BytesIO(data)) as image:
            width, height = image.size
            box = choose(height, width)
            wanted = "L" if mode == "gray" else "RGB"
            image.draft(wanted, (-(-width // box.factor), -(-height // box.factor)))
            picture = pixels(image, mode)
        return picture, _fitted(box, height, width, picture)

    return read


def _flat(picture: Any, mode: str) -> Any:
    return picture[:, :, 0] if mode == "gray" else picture


def _cutting(make: Callable[..., Reader], mode: str) -> Callable[[Any], Cropper]:
    """Return what makes, of a library, a function that decodes with it and then cuts."""

    def with_library(module: Any) -> Cropper:
        read = make(module, mode)
        return lambda data, choose, room: cut(*read(data, choose), room)

    return with_library


@lru_cache(maxsize=8)
def cropper(mode: str) -> Callable[..., Any]:
    """Return what takes the piece that is chosen out of a JPEG, with the fastest way there is."""
    readers = {"simplejpeg": _simplejpeg, "turbojpeg": _turbojpeg, "PIL.Image": _pillow}
    choices: dict[str, Callable[[Any], Cropper]] = {COMPILED: partial(_compiled, mode=mode)}
    choices.update({name: _cutting(each, mode) for name, each in readers.items()})
    return forgiving(first_of(choices, "a JPEG"), _cutting(_pillow, mode))
