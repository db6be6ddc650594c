"""PNGs whose filters are undone in C: the pixels of Pillow, or what Pillow says."""

from __future__ import annotations

import io
import struct
import sys
import tracemalloc
import warnings
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import stoker
from compiled import compiled, pngs_by
from made_data import pack
from stoker.data.pictures import decode, png
from stoker.data.pictures.crop import Resize
from stoker.errors import DataError

numpy = pytest.importorskip("numpy")
image = pytest.importorskip("PIL.Image")

NONE, SUB, UP, AVERAGE, PAETH = FILTERS = range(5)
GREY, RGB = 0, 2
MODES = ("rgb", "gray")


def chunk(name: bytes, body: bytes = b"") -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def header(
    width: int, height: int, colours: int = RGB, *, bits: int = 8, interlaced: int = 0
) -> bytes:
    return chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, bits, colours, 0, 0, interlaced))


def made(*chunks: bytes) -> bytes:
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks) + chunk(b"IEND")


def lines(height: int, size: int, filters: Sequence[int] = FILTERS, seed: int = 0) -> bytes:
    """Lines of chance with these filters in turn: any bytes are a picture."""
    noise = numpy.random.default_rng(seed).integers(0, 256, (height, size + 1), "u1")
    noise[:, 0] = numpy.resize(numpy.array(filters, "u1"), height)
    return bytes(noise.tobytes())


def drawn(height: int, width: int, colours: int = RGB, *more: bytes, **how: Any) -> bytes:
    """A PNG of chance, with more chunks before its pixels."""
    size = width * (3 if colours == RGB else 1)
    packed = zlib.compress(lines(height, size, **how))
    return made(header(width, height, colours), *more, chunk(b"IDAT", packed))


def ours(data: bytes, mode: str = "rgb") -> Any:
    """What a data set makes of it, where there is no other library but Pillow."""
    with pngs_by(compiled("_png")), pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "torchvision.io", None)
        return decode.decoder("png", mode=mode)(memoryview(data))


def own(data: bytes, mode: str = "rgb") -> Any:
    """What is made of it without another library. Raises one of UNUSUAL."""
    channels = decode.CHANNELS[mode]
    found = png.read(memoryview(data), 3 if channels else 1)
    place = numpy.empty((found.height, found.width, *channels), "u1")
    compiled("_png").undo(found.lines, place, found.width, found.channels, 3 if channels else 1)
    return place


def pillows(data: bytes, mode: str = "rgb") -> Any:
    return decode._pillow(image, mode)(memoryview(data))


def outcome(read: Callable[[bytes, str], Any], data: bytes, mode: str) -> Any:
    """Pixels as lists, or the kind of error."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Of a bomb.
            return read(data, mode).tolist()
    except Exception as error:
        return type(error)


# -- the same pixels -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "filters", [*[[each] for each in FILTERS], [PAETH, UP, AVERAGE, SUB, NONE]]
)
@pytest.mark.parametrize("size", [(1, 1), (1, 40), (40, 1), (2, 3), (17, 31), (200, 160)])
def test_every_filter_is_undone_as_pillow_does(filters: list[int], size: tuple[int, int]) -> None:
    colour, grey = drawn(*size, RGB, filters=filters), drawn(*size, GREY, filters=filters)
    assert numpy.array_equal(own(colour), pillows(colour))
    assert numpy.array_equal(own(grey), pillows(grey))
    assert numpy.array_equal(own(grey, "gray"), pillows(grey, "gray"))


sizes = st.integers(1, 40)


@given(
    sizes, sizes, st.sampled_from([GREY, RGB]), st.sampled_from(MODES), st.integers(0, 9), st.data()
)
def test_any_picture_is_that_of_pillow(
    height: int, width: int, colours: int, mode: str, seed: int, chance: st.DataObject
) -> None:
    filters = chance.draw(st.lists(st.sampled_from(FILTERS), min_size=1, max_size=height))
    data = drawn(height, width, colours, seed=seed, filters=filters)
    assert numpy.array_equal(ours(data, mode), pillows(data, mode))


@pytest.mark.parametrize("cuts", [[], [0], [1], [5, 5, 900], list(range(2000))])
def test_pixels_may_be_in_many_chunks(cuts: list[int]) -> None:
    packed = zlib.compress(lines(30, 90))
    pieces = [packed[a:b] for a, b in zip([0, *cuts], [*cuts, len(packed)], strict=True)]
    data = made(header(30, 30), *(chunk(b"IDAT", each) for each in pieces))
    assert numpy.array_equal(own(data), pillows(data))


def test_chunks_that_change_no_pixel_are_passed_over() -> None:
    more = [
        chunk(b"gAMA", bytes(4)), chunk(b"sRGB", b"\0"), chunk(b"pHYs", bytes(9)), chunk(b"cHRM", bytes(32)),
        chunk(b"tEXt", b"Title\0one"), chunk(b"tEXt"), chunk(b"tEXt", b"\xff\0\xff"), chunk(b"tIME", bytes(7)),
    ]  # fmt: skip
    data = drawn(5, 6, RGB, *more) + b"what follows the end"
    assert numpy.array_equal(own(data), pillows(data))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["L", "RGB", "RGBA", "LA", "P", "1", "I;16"])
def test_whatever_pillow_writes_is_read(kind: str, mode: str) -> None:
    noise = numpy.random.default_rng(0).integers(0, 256, (20, 30, 3), "u1")
    out = io.BytesIO()
    image.fromarray(noise).convert("L" if kind == "I;16" else kind).convert(kind).save(out, "PNG")
    data = out.getvalue()
    assert numpy.array_equal(ours(data, mode), pillows(data, mode))


@pytest.mark.parametrize("crop", [None, Resize(20)])
@pytest.mark.parametrize("name", ["png", "jpg"])
@pytest.mark.parametrize("mode", MODES)
def test_grey_of_16_bits_has_all_its_shades(
    tmp_path: Path, mode: str, name: str, crop: Resize | None
) -> None:
    """Not only those up to 255, and white for all others: also where a PNG is called JPEG."""
    shades = numpy.arange(0, 1 << 16, 164, "u2")[:400].reshape(20, 20)
    out = io.BytesIO()
    image.fromarray(shades).save(out, "PNG")
    pack(tmp_path, [("a", {name: out.getvalue()}, None)])
    with pngs_by(compiled("_png")):
        found = stoker.open(tmp_path, parts=name, decode=mode, crop=crop)[0]
    wanted = (shades >> 8).astype("u1")
    assert numpy.array_equal(found, numpy.stack([wanted] * 3, 2) if mode == "rgb" else wanted)


class Tensor:
    """What torchvision gives, from 0.21 on of 16 bits where the picture has them."""

    def __init__(self, values: Any) -> None:
        self.values = values

    def __getitem__(self, at: int) -> Tensor:
        return Tensor(self.values[at])

    def permute(self, *axes: int) -> Tensor:
        return Tensor(self.values.transpose(axes))

    def numpy(self) -> Any:
        return self.values


@pytest.mark.parametrize("mode", MODES)
def test_16_bits_of_torchvision_are_8_bits_too(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shades = numpy.arange(0, 1 << 16, 256, "u2").reshape(1, 16, 16)
    told = Tensor(shades if mode == "gray" else numpy.repeat(shades, 3, 0))
    monkeypatch.setitem(
        sys.modules, "torch", SimpleNamespace(frombuffer=lambda data, dtype: data, uint8=None)
    )
    module = SimpleNamespace(
        decode_image=lambda data, kind: told, ImageReadMode=SimpleNamespace(RGB=3, GRAY=1)
    )
    found = decode._torchvision(module, mode)(memoryview(b""))
    assert found.dtype == numpy.uint8
    assert found.shape == (16, 16, 3)[: found.ndim]
    assert numpy.array_equal(found.reshape(256, -1)[:, 0], numpy.arange(256))


@pytest.mark.parametrize(("kind", "how"), [("webp", {"lossless": True}), ("bmp", {})])
@pytest.mark.parametrize("crop", [None, Resize(9)])
@pytest.mark.parametrize("mode", MODES)
def test_webp_and_bmp_are_decoded_as_the_same_png_is(
    tmp_path: Path, kind: str, how: dict[str, Any], crop: Any, mode: str
) -> None:
    noise = numpy.random.default_rng(0).integers(0, 256, (20, 30, 3), "u1")
    out = {each: io.BytesIO() for each in (kind, "png")}
    image.fromarray(noise).save(out[kind], kind, **how)
    image.fromarray(noise).save(out["png"], "png")
    pack(tmp_path, [("0", {each: file.getvalue() for each, file in out.items()}, None)])
    data = stoker.open(tmp_path, parts=(kind, "png"), crop=crop, decode=mode)
    assert numpy.array_equal(*data[0])


@pytest.mark.parametrize("crop", [None, Resize(9)])
@pytest.mark.parametrize("mode", MODES)
def test_without_the_compiled_part_batches_are_the_same(
    tmp_path: Path, mode: str, crop: Any
) -> None:
    samples = [drawn(20, 30, GREY if at == 2 else RGB, seed=at) for at in range(5)]
    pack(tmp_path, [(f"{at}", {"png": each}, None) for at, each in enumerate(samples)])
    found = []
    for module in (compiled("_png"), None):
        with pngs_by(module):
            data = stoker.open(tmp_path, parts="png", decode=mode, crop=crop)
            found.append(numpy.asarray(next(iter(stoker.Loader(data, 5, num_workers=0)))))
    assert numpy.array_equal(*found)


def test_a_batch_is_decoded_where_it_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numpy, "stack", None)
    pack(tmp_path, [(f"{at}", {"png": drawn(9, 9, GREY, seed=at)}, None) for at in range(3)])
    with pngs_by(compiled("_png")):
        data = stoker.open(tmp_path, parts="png")
        batch = numpy.asarray(next(iter(stoker.Loader(data, 3, num_workers=0))))
        assert numpy.array_equal(batch, [data[at] for at in range(3)])


# -- what is not usual, or wrong -----------------------------------------------------------


PACKED = zlib.compress(lines(2, 6))
UNUSUAL = {
    "nothing": b"",
    "no picture": b"no picture at all, but longer than a header of one is",
    "alpha": made(header(2, 2, 6), chunk(b"IDAT", zlib.compress(lines(2, 8)))),
    "16 bits": made(header(2, 2, GREY, bits=16), chunk(b"IDAT", zlib.compress(lines(2, 4)))),
    "2 bits": made(header(2, 2, GREY, bits=2), chunk(b"IDAT", zlib.compress(lines(2, 1)))),
    "interlaced": made(header(1, 1, interlaced=1), chunk(b"IDAT", zlib.compress(lines(1, 3)))),
    "transparent": drawn(2, 2, RGB, chunk(b"tRNS", bytes(6))),
    "unknown chunk": drawn(2, 2, RGB, chunk(b"abCd", b"?")),
    "wrong size of a chunk": drawn(2, 2, RGB, chunk(b"gAMA")),
    "much text": drawn(2, 2, RGB, chunk(b"tEXt", b"a" * 70000)),
    "two headers": drawn(2, 2, RGB, header(2, 2)),
    "no pixels": made(header(2, 2)),
    "no width": made(header(0, 2), chunk(b"IDAT", zlib.compress(bytes(2)))),
    "empty pixels": made(header(2, 2), chunk(b"IDAT", zlib.compress(b""))),
    "too few pixels": made(header(2, 2), chunk(b"IDAT", zlib.compress(lines(1, 6)))),
    "too many pixels": made(header(2, 2), chunk(b"IDAT", zlib.compress(lines(4, 6)))),
    "more than one stream": made(header(2, 2), chunk(b"IDAT", PACKED * 2)),
    "no end of the stream": made(header(2, 2), chunk(b"IDAT", PACKED[:-4])),
    "wrong checksum of the stream": made(header(2, 2), chunk(b"IDAT", PACKED[:-4] + bytes(4))),
    "pixels in two places": made(
        header(2, 2), chunk(b"IDAT", PACKED[:9]), chunk(b"tEXt"), chunk(b"IDAT", PACKED[9:])
    ),
    "unknown filter": drawn(2, 2, RGB, filters=[5]),
    "wrong CRC": made(header(2, 2), chunk(b"IDAT", PACKED)[:-4] + bytes(4)),
    "no last chunk": drawn(2, 2)[:-12],
    "a bomb": made(header(60000, 60000), chunk(b"IDAT", zlib.compress(bytes(100000)))),
}


@pytest.mark.parametrize("name", UNUSUAL)
@pytest.mark.parametrize("mode", MODES)
def test_what_is_not_usual_is_left_to_pillow(name: str, mode: str) -> None:
    with pytest.raises(png.UNUSUAL):
        own(UNUSUAL[name], mode)
    assert outcome(ours, UNUSUAL[name], mode) == outcome(pillows, UNUSUAL[name], mode)


def test_colours_are_made_grey_by_pillow() -> None:
    with pytest.raises(ValueError, match="not usual"):
        own(drawn(3, 3), "gray")
    assert numpy.array_equal(ours(drawn(3, 3), "gray"), pillows(drawn(3, 3), "gray"))


def test_no_more_is_unpacked_than_the_picture_needs() -> None:
    packed = zlib.compress(bytes(1 << 24))
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="too many"):
            png._inflate(packed, 100)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@given(st.sampled_from([GREY, RGB]), st.sampled_from(MODES), st.integers(0))
def test_a_picture_that_was_cut_off_is_what_pillow_makes_of_it(
    colours: int, mode: str, size: int
) -> None:
    data = drawn(6, 7, colours, chunk(b"tEXt", b"a\0b"))
    part = data[: size % len(data)]
    assert outcome(ours, part, mode) == outcome(pillows, part, mode)


flips = st.lists(st.tuples(st.integers(0), st.integers(0, 7)), min_size=1, max_size=4)


def flipped(data: bytes, where: list[tuple[int, int]]) -> bytes:
    made = bytearray(data)
    for at, bit in where:
        made[at % len(made)] ^= 1 << bit
    return bytes(made)


@given(st.sampled_from([GREY, RGB]), st.sampled_from(MODES), flips)
def test_bits_that_flipped_give_what_pillow_makes_of_them(
    colours: int, mode: str, where: list[tuple[int, int]]
) -> None:
    data = flipped(drawn(6, 7, colours, chunk(b"pHYs", bytes(9))), where)
    assert outcome(ours, data, mode) == outcome(pillows, data, mode)


@given(flips, st.integers(0, 2))
def test_a_stream_that_is_wrong_gives_what_pillow_makes_of_it(
    where: list[tuple[int, int]], level: int
) -> None:
    """With the right CRC, so that the bytes are looked into."""
    packed = flipped(zlib.compress(lines(6, 21), level), where)
    data = made(header(7, 6), chunk(b"IDAT", packed))
    assert outcome(ours, data, "rgb") == outcome(pillows, data, "rgb")


names = st.sampled_from(
    [*png._HARMLESS, b"tEXt", b"tRNS", b"IDAT", b"IEND", b"acTL", b"iCCP", b"abCd"]
)
chunks = st.lists(st.builds(chunk, names, st.binary(max_size=40)), max_size=3)


@given(chunks, chunks)
def test_any_chunks_around_the_pixels_give_what_pillow_makes_of_them(
    before: list[bytes], after: list[bytes]
) -> None:
    data = made(header(2, 2), *before, chunk(b"IDAT", PACKED), *after)
    assert outcome(ours, data, "rgb") == outcome(pillows, data, "rgb")


def test_a_sample_that_is_damaged_is_named(tmp_path: Path) -> None:
    pack(tmp_path, [("a/b", {"png": drawn(20, 20)[:-200]}, None)])
    with pngs_by(compiled("_png")), pytest.raises(DataError, match=r"cannot decode `a/b\.png`"):
        stoker.open(tmp_path, parts="png")[0]


@pytest.mark.parametrize(
    ("size", "place", "width", "of", "to"),
    [
        (14, 12, 2, 3, 3 - 1), (14, 12, 2, 2, 2), (14, 12, 0, 3, 3), (14, 12, -2, 3, 3), (14, 12, 1 << 62, 3, 3),
        (13, 12, 2, 3, 3), (14, 11, 2, 3, 3), (14, 18, 2, 3, 3), (6, 11, 2, 1, 3), (6, 4, 2, 1, 3),
        (6, 4, 2, 1, 4), (0, 4, 2, 1, 1), (14, 12, 2, 3, 1),
    ],
)  # fmt: skip
def test_memory_that_does_not_fit_is_refused(
    size: int, place: int, width: int, of: int, to: int
) -> None:
    with pytest.raises(ValueError, match=r"not whole|another shape|as many"):
        compiled("_png").undo(bytes(size), bytearray(place), width, of, to)


def test_memory_that_cannot_be_written_to_is_refused() -> None:
    with pytest.raises(TypeError):
        compiled("_png").undo(bytes(14), bytes(12), 2, 3, 3)
