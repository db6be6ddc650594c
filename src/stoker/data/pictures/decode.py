"""Makes values of bytes, by the extension of a part. Libraries are the user's, imported when used.

A picture is an array of height, width and 3 channels, or of height and width if it is to be grey,
whichever library decodes it.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from importlib import import_module
from typing import Any

from stoker.data.pictures import png
from stoker.errors import DataError, StokerError

Decoder = Callable[[memoryview], Any]
# Gives memory for a picture of this shape, as an array of bytes; None if it has none.
Room = Callable[[tuple[int, ...]], Any]
# Makes, of a library and a mode, what decodes with it.
Maker = Callable[..., Callable[..., Any]]
JPEG = ("jpg", "jpeg")
PICTURES = (*JPEG, "png", "webp", "bmp")
# Our own decoders, in C; where one was not compiled, another one is there instead.
COMPILED = "stoker.data.pictures._jpeg"
COMPILED_PNG = "stoker.data.pictures._png"
# What follows height and width in the shape of a picture.
CHANNELS: dict[str, tuple[int, ...]] = {"rgb": (3,), "gray": ()}


def is_picture(extension: str, kinds: tuple[str, ...] = PICTURES) -> bool:
    """Say whether parts with this extension are pictures, of these kinds.

    >>> is_picture("left.JPG"), is_picture("left.png", JPEG)
    (True, False)
    """
    return extension.rpartition(".")[2].lower() in kinds


def decoder(
    extension: str, more: Mapping[str, Decoder] | None = None, mode: str = "rgb"
) -> Decoder:
    """Return what decodes parts with this extension; what nobody knows stays bytes.

    Of `left.jpg` and the like the last piece counts. `mode` is that of pictures: "rgb" or "gray".
    """
    last = extension.rpartition(".")[2].lower()
    for known in ({name.removeprefix("."): each for name, each in (more or {}).items()}, _DECODERS):
        found = known.get(extension) or known.get(last)
        if found:
            return found
    return picture_decoder(last in JPEG, mode) if is_picture(extension) else bytes


def array_decoder(dtype: str, shape: tuple[int, ...]) -> Decoder:
    """Return what makes an array of its own of the bytes of a sample of fixed shape."""

    def decode(data: memoryview) -> Any:
        numpy = library("numpy", "an array")
        return numpy.frombuffer(data, dtype).reshape(shape).copy()

    return decode


def library(name: str, what: str) -> Any:
    """Import a library of the user's. Raises DataError if it is not there."""
    try:
        return import_module(name)
    except ImportError:
        package = {"PIL": "pillow", "PIL.Image": "pillow"}.get(name, name)
        raise DataError(
            f"cannot decode {what}",
            why=f"`{name}` is not installed in this Python",
            fix=f"pip install {package}, or stoker.open(…, decode=False) for the bytes",
        ) from None


def first_of(choices: Mapping[str, Callable[[Any], Any]], what: str) -> Callable[..., Any]:
    """Return a function that is made when it is first used, by the first library that is there."""
    chosen: list[Callable[..., Any]] = []

    def call(*values: Any) -> Any:
        if not chosen:
            *others, last = choices
            for name in others:
                try:
                    chosen.append(choices[name](import_module(name)))
                    break
                # A torchvision that does not fit its torch fails in its own way.
                except (ImportError, RuntimeError, AttributeError, OSError):
                    continue
            else:
                chosen.append(choices[last](library(last, what)))
        return chosen[0](*values)

    return call


@lru_cache(maxsize=8)
def picture_decoder(is_jpeg: bool, mode: str) -> Callable[..., Any]:
    """Return what decodes pictures, with the fastest library that is there.

    A library that can writes the picture into the room that is given as a second argument.
    """
    fastest = _fastest("a JPEG", _JPEG, mode) if is_jpeg else _fastest("an image", _PNG, mode)
    return forgiving(fastest, partial(_pillow, mode=mode))


def _fastest(what: str, choices: Mapping[str, Maker], mode: str) -> Callable[..., Any]:
    return first_of({name: partial(make, mode=mode) for name, make in choices.items()}, what)


def forgiving(
    fast: Callable[..., Any], make_other: Callable[[Any], Callable[..., Any]]
) -> Callable[..., Any]:
    """Return a function that tries Pillow where another library gives up.

    ImageNet has JPEGs with four inks, and a PNG that is called JPEG.
    """

    def call(*values: Any) -> Any:
        try:
            return fast(*values)
        except (StokerError, MemoryError):
            raise
        except Exception as error:
            try:
                return make_other(import_module("PIL.Image"))(*values)
            except Exception:
                raise error from None

    return call


def places() -> Callable[[tuple[int, ...], Room | None], Any]:
    """Return what gives memory for a picture: in the room that is there for it, if it has any."""
    empty = library("numpy", "a picture").empty

    def place(shape: tuple[int, ...], room: Room | None) -> Any:
        given = room(shape) if room is not None else None
        return empty(shape, "u1") if given is None else given

    return place


def _compiled(module: Any, mode: str) -> Callable[..., Any]:
    channels, place_for = CHANNELS[mode], places()
    count = math.prod(channels)

    def decode(data: memoryview, room: Room | None = None) -> Any:
        place = place_for((*module.header(data), *channels), room)
        module.decode(data, place, count)
        return place

    return decode


def _compiled_png(module: Any, mode: str) -> Callable[..., Any]:
    """Return what decodes usual PNGs itself, and others as if it were not there."""
    channels, place_for = CHANNELS[mode], places()
    count = math.prod(channels)
    other = _fastest("an image", _OTHERS, mode)

    def decode(data: memoryview, room: Room | None = None) -> Any:
        try:
            found = png.read(data, count)
            place = place_for((found.height, found.width, *channels), room)
            module.undo(found.lines, place, found.width, found.channels, count)
        except png.UNUSUAL:
            return other(data, room)
        return place

    return decode


def _simplejpeg(module: Any, mode: str) -> Callable[..., Any]:
    colours = "GRAY" if mode == "gray" else "RGB"

    def decode(data: memoryview, room: Room | None = None) -> Any:
        place = None
        if room is not None:
            shape = module.decode_jpeg_header(data)[:2]
            place = room(shape if mode == "gray" else (*shape, 3))
        if place is not None:
            module.decode_jpeg(data, colours, buffer=place)
            return place
        made = module.decode_jpeg(data, colours)
        return made[:, :, 0] if mode == "gray" else made

    return decode


def _torchvision(module: Any, mode: str) -> Callable[..., Any]:
    torch = import_module("torch")
    read = module.decode_image
    wanted = getattr(module.ImageReadMode, mode.upper())

    def decode(data: memoryview, room: Room | None = None) -> Any:
        # A copy, as torch warns of bytes that cannot be written to.
        made = read(torch.frombuffer(bytearray(data), dtype=torch.uint8), wanted)
        return _eight_bits((made[0] if mode == "gray" else made.permute(1, 2, 0)).numpy())

    return decode


def _turbojpeg(module: Any, mode: str) -> Callable[..., Any]:
    turbo = module.TurboJPEG()
    wanted = module.TJPF_GRAY if mode == "gray" else module.TJPF_RGB

    def decode(data: memoryview, room: Room | None = None) -> Any:
        made = turbo.decode(bytes(data), pixel_format=wanted)
        return made[:, :, 0] if mode == "gray" else made

    return decode


def _pillow(module: Any, mode: str) -> Callable[..., Any]:
    def decode(data: memoryview, room: Room | None = None) -> Any:
        with module.open(io.BytesIO(data)) as image:
            if mode == "gray":  # The grey that a JPEG has, as others take it.
                image.draft("L", image.size)
            return pixels(image, mode)

    return decode


def pixels(image: Any, mode: str) -> Any:
    """Return a picture that Pillow has opened as an array."""
    numpy = library("numpy", "an image")
    if image.format == "PNG" and image.mode.startswith("I"):
        # Grey of 16 bits: Pillow itself would make white of all that is above 255.
        grey = _eight_bits(numpy.asarray(image))
        return grey if mode == "gray" else numpy.stack([grey] * 3, 2)
    return numpy.array(image.convert("L" if mode == "gray" else "RGB"))


def _eight_bits(values: Any) -> Any:
    """Return the upper half of pixels of 16 bits, as Pillow does with colours; others as they are."""
    return values if values.itemsize == 1 else (values >> 8).astype("u1")


def _npy(data: memoryview) -> Any:
    return library("numpy", "a .npy part").load(io.BytesIO(data), allow_pickle=False)


def _json(data: memoryview) -> Any:
    return json.loads(bytes(data))


def _text(data: memoryview) -> str:
    return str(data, "utf-8")


def _number(data: memoryview) -> int:
    return int(bytes(data))


# The fastest first: the same library underneath, with less around it.
_JPEG: dict[str, Maker] = {
    COMPILED: _compiled, "simplejpeg": _simplejpeg, "torchvision.io": _torchvision, "turbojpeg": _turbojpeg,
    "PIL.Image": _pillow,
}  # fmt: skip
_OTHERS: dict[str, Maker] = {"torchvision.io": _torchvision, "PIL.Image": _pillow}
_PNG: dict[str, Maker] = {COMPILED_PNG: _compiled_png, **_OTHERS}
_DECODERS: dict[str, Decoder] = {
    "npy": _npy, "json": _json, "txt": _text, "text": _text,
    "cls": _number, "id": _number, "index": _number,
}  # fmt: skip
