"""The readers that read.py compares, each in a process of its own that does what it is told.

    PYTHON readers.py NAME FOLDER

FOLDER has the samples as plain files (`large/*.jpg`, `small/*.png`, `photos/*.jpg`) and as an
array (`arrays.npy`). A reader writes them once in its own format beside them, then gives batches. Questions come as
lines of JSON, answers go back likewise. Libraries are imported by the readers that need them.
"""

from __future__ import annotations

import ctypes
import io
import itertools
import json
import os
import random
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

Batches = Callable[[], Iterable[Any]]
SUFFIXES = {"large": "jpg", "small": "png", "photos": "jpg"}
# What is decoded is stored as these are.
STORED = {
    "large": "large", "small": "small", "photos": "photos",
    "jpeg": "large", "crop": "large", "photo": "photos", "png": "small",
}  # fmt: skip
# Random pieces are taken out of these.
CROPPED = ("crop", "photo")
# Parts of the samples that tell them apart; some readers pad what they give.
TELLING = {"large": slice(1000, 2000), "small": slice(40, 140)}
SHARDS = 8
CROP = 224


class Ask(NamedTuple):
    """What is to be read, and how."""

    kind: str
    workers: int = 0
    shuffled: bool = True
    batch: int = 256


class Reader:
    """One way to store and read samples. `kinds` are those that it can give."""

    packages: ClassVar[tuple[str, ...]] = ()
    kinds: ClassVar[tuple[str, ...]] = ("large", "small")
    own_folder = True
    # Whether it can go on with another number of workers in the same process.
    can_change = True

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def place(self, kind: str) -> Path:
        """Return the folder of this reader's format."""
        stored = STORED.get(kind, kind)
        name = type(self).__name__.lower() if self.own_folder else "files"
        return self.folder / stored / name

    def write(self, kind: str) -> None:
        """Store the samples in this reader's format, once."""
        place = self.place(kind)
        if not place.exists():
            part = place.with_name(f".{place.name}")
            self.store(STORED.get(kind, kind), part)
            part.rename(place)

    def store(self, kind: str, place: Path) -> None:
        raise NotImplementedError

    def batches(self, ask: Ask) -> Batches:
        """Return what gives the batches of an epoch."""
        raise NotImplementedError

    def pieces(self, batch: Any) -> Iterable[Any]:
        """Return the bytes of each sample of a batch."""
        return batch  # type: ignore[no-any-return]

    def count(self, batch: Any) -> int:
        return len(batch)

    def source(self, kind: str) -> list[Path]:
        return sorted((self.folder / kind / "files").iterdir())


# -- ours ------------------------------------------------------------------------------------


class Stoker(Reader):
    """Packed by `stoker pack`, read by stoker.Loader."""

    kinds: ClassVar[tuple[str, ...]] = (
        "large", "small", "arrays", "jpeg", "crop", "photo", "png",
    )  # fmt: skip
    mapped: bool | None = None

    def store(self, kind: str, place: Path) -> None:
        pack = import_module("stoker.data.packing.pack")
        source = self.folder / ("arrays.npy" if kind == "arrays" else f"{kind}/files")
        pack.pack(source, place, pack.Settings())

    def place(self, kind: str) -> Path:
        return self.folder / STORED.get(kind, kind) / "stoker"

    def batches(self, ask: Ask) -> Batches:
        import stoker

        if ask.kind not in ("large", "small"):
            import_module("torch")
        data = self._open(stoker, ask.kind)
        if self.mapped is not None:
            data.shards.is_mapped = self.mapped
        return stoker.Loader(data, ask.batch, ask.shuffled, num_workers=ask.workers).__iter__

    def _open(self, stoker: Any, kind: str) -> Any:
        if kind == "arrays":
            return stoker.open(self.place(kind))
        more = {"crop": stoker.RandomResizedCrop(CROP)} if kind in CROPPED else {}
        is_decoded = kind not in ("large", "small")
        part = SUFFIXES[STORED[kind]]
        return stoker.open(self.place(kind), parts=part, decode=is_decoded, **more)

    def count(self, batch: Any) -> int:
        return len(next(iter(batch.values())) if isinstance(batch, dict) else batch)


class StokerPread(Stoker):
    """The same archives, read instead of mapped, as on a network file system."""

    kinds = ("large", "small")
    mapped = False


class Memcpy(Reader):
    """No reader: one copy of as many bytes as a batch has, for comparison."""

    kinds = ("large",)

    def write(self, kind: str) -> None:
        pass

    def batches(self, ask: Ask) -> Batches:
        path = next(iter(sorted((self.folder / ask.kind / "stoker").glob("shard-*"))))
        files = self.source(ask.kind)
        size = sum(each.stat().st_size for each in files) // len(files) * ask.batch
        data = path.read_bytes()
        out = ctypes.create_string_buffer(size)

        def epoch() -> Iterator[Sequence[int]]:
            begin = ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value or 0
            for start in range(0, len(data) - size, size):
                ctypes.memmove(out, begin + start, size)
                yield range(ask.batch)

        return epoch


class Decoder(Reader):
    """No reader: a decoder alone, on bytes in memory, in as many threads as are asked for."""

    packages: ClassVar[tuple[str, ...]] = ("simplejpeg",)
    kinds = ("jpeg",)

    def write(self, kind: str) -> None:
        pass

    def decoder(self) -> Callable[[Any], Any]:
        return _decode("jpeg")

    def batches(self, ask: Ask) -> Batches:
        decode = self.decoder()
        data = [each.read_bytes() for each in self.source("large")[:512]]

        def some(at: int) -> int:
            for each in data[at : at + 16]:
                decode(each)
            return 16

        def epoch() -> Iterator[Sequence[int]]:
            with ThreadPoolExecutor(max(1, ask.workers)) as pool:
                for done in pool.map(some, range(0, len(data), 16)):
                    yield range(done)

        return epoch


class OwnDecoder(Decoder):
    """Stoker's own decoder alone, into the same memory again and again."""

    packages = ("numpy", "stoker.data.pictures._jpeg")

    def decoder(self) -> Callable[[Any], Any]:
        engine, empty = import_module(self.packages[1]), import_module("numpy").empty
        kept = threading.local()

        def decode(data: Any) -> None:
            shape = (*engine.header(data), 3)
            if getattr(kept, "shape", None) != shape:
                kept.shape, kept.place = shape, empty(shape, "u1")
            engine.decode(data, kept.place, 3)

        return decode


class Numpy(Reader):
    """No reader: one gather of rows of an array in memory, for comparison."""

    packages = ("numpy",)
    kinds = ("arrays",)

    def write(self, kind: str) -> None:
        pass

    def batches(self, ask: Ask) -> Batches:
        numpy = import_module("numpy")
        data = numpy.load(self.folder / "arrays.npy")
        out = numpy.empty((ask.batch, *data.shape[1:]), data.dtype)

        def epoch() -> Iterator[Any]:
            order = numpy.random.permutation(len(data))
            for start in range(0, len(data) - ask.batch, ask.batch):
                yield numpy.take(data, order[start : start + ask.batch], axis=0, out=out)

        return epoch


# -- readers of PyTorch's DataLoader -----------------------------------------------------------


class Mapped(Reader):
    """A map-style data set in PyTorch's DataLoader; `item` gives the bytes of a sample."""

    packages: ClassVar[tuple[str, ...]] = ("torch",)
    kinds: ClassVar[tuple[str, ...]] = ("large", "small", "jpeg", "crop", "photo", "png")

    def samples(self, kind: str) -> Any:
        """Return a data set of bytes."""
        raise NotImplementedError

    def batches(self, ask: Ask) -> Batches:
        data = self.samples(ask.kind)
        if ask.kind in ("large", "small"):
            return _loader(data, ask, list)
        return _loader(Decoded(data, ask.kind), ask, None)


class Decoded:
    """Samples of another data set, as tensors."""

    def __init__(self, data: Any, kind: str) -> None:
        self.data, self.decode = data, _decode(kind)

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, at: int) -> Any:
        return self.decode(self.data[at])

    def __getitems__(self, at: list[int]) -> list[Any]:
        if hasattr(self.data, "__getitems__"):
            return [self.decode(each) for each in self.data.__getitems__(at)]
        return [self[each] for each in at]


def _loader(data: Any, ask: Ask, collate: Callable[[Any], Any] | None) -> Batches:
    loader = import_module("torch.utils.data").DataLoader(
        data, ask.batch, shuffle=ask.shuffled, num_workers=ask.workers, collate_fn=collate,
        persistent_workers=ask.workers > 0,
    )  # fmt: skip
    return loader.__iter__  # type: ignore[no-any-return]


def _decode(kind: str) -> Callable[[Any], Any]:
    """Return what makes a tensor's array of the bytes of a sample."""
    if kind == "png":
        image, numpy = import_module("PIL.Image"), import_module("numpy")
        return lambda data: numpy.array(image.open(io.BytesIO(data)).convert("RGB"))
    decode = import_module("simplejpeg").decode_jpeg
    if kind == "jpeg":
        return lambda data: decode(data, "RGB")
    return lambda data: _crop(decode(data, "RGB"))


def _crop(pixels: Any) -> Any:
    """Cut a random part out and scale it, as torchvision's RandomResizedCrop does."""
    image, numpy = import_module("PIL.Image"), import_module("numpy")
    height, width = pixels.shape[:2]
    for _ in range(10):
        area = random.uniform(0.08, 1) * height * width
        ratio = random.uniform(3 / 4, 4 / 3)
        wide, high = round((area * ratio) ** 0.5), round((area / ratio) ** 0.5)
        if 0 < wide <= width and 0 < high <= height:
            break
    else:
        wide = high = min(width, height)
    left, top = random.randint(0, width - wide), random.randint(0, height - high)
    part = image.fromarray(pixels[top : top + high, left : left + wide])
    return numpy.asarray(part.resize((CROP, CROP), image.Resampling.BILINEAR))


class Files(Mapped):
    """The files as they are."""

    kinds = ("large", "small", "jpeg", "crop", "photo", "png", "arrays")
    own_folder = False

    def write(self, kind: str) -> None:
        pass

    def samples(self, kind: str) -> Any:
        return FileData([str(each) for each in self.source(STORED[kind])])

    def batches(self, ask: Ask) -> Batches:
        if ask.kind != "arrays":
            return super().batches(ask)
        files = self.source("small")
        return _loader(Decoded(FileData([str(each) for each in files]), "png"), ask, None)


class FileData(list[Any]):
    """Paths, of which the files are the samples."""

    def __getitem__(self, at: Any) -> Any:
        with open(super().__getitem__(at), "rb") as file:  # noqa: PTH123
            return file.read()


class Lmdb(Mapped):
    """One LMDB, a number a key."""

    packages = ("torch", "lmdb")
    # A child may not open what its parent has open.
    can_change = False

    def store(self, kind: str, place: Path) -> None:
        files = self.source(kind)
        size = 2 * sum(each.stat().st_size + 8192 for each in files)
        env = import_module("lmdb").open(str(place), map_size=size)
        with env.begin(write=True) as change:
            for at, each in enumerate(files):
                change.put(b"%08d" % at, each.read_bytes())
        env.close()

    def samples(self, kind: str) -> Any:
        return LmdbData(self.place(kind), len(self.source(STORED[kind])))


class LmdbData:
    """Opened in the process that reads, once, as LMDB demands."""

    opened: ClassVar[dict[tuple[int, str], Any]] = {}

    def __init__(self, path: Path, length: int) -> None:
        self.path, self.length = str(path), length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, at: int) -> Any:
        read = self.opened.get((os.getpid(), self.path))
        if read is None:
            env = import_module("lmdb").open(self.path, readonly=True, lock=False, readahead=False)
            read = self.opened[os.getpid(), self.path] = env.begin()
        return read.get(b"%08d" % at)


class H5py(Mapped):
    """One data set of all bytes, and where each sample begins."""

    packages = ("torch", "h5py")

    def store(self, kind: str, place: Path) -> None:
        numpy = import_module("numpy")
        place.mkdir()
        data = [each.read_bytes() for each in self.source(kind)]
        with import_module("h5py").File(place / "all.h5", "w") as file:
            file["data"] = numpy.frombuffer(b"".join(data), "u1")
            file["ends"] = numpy.cumsum([0, *map(len, data)])

    def samples(self, kind: str) -> Any:
        return H5Data(self.place(kind) / "all.h5")


class H5Data:
    """Opened in the process that reads."""

    def __init__(self, path: Path) -> None:
        self.path, self.data = path, None
        with import_module("h5py").File(path) as file:
            self.ends = file["ends"][:]

    def __len__(self) -> int:
        return len(self.ends) - 1

    def __getitem__(self, at: int) -> Any:
        if self.data is None:
            self.data = import_module("h5py").File(self.path)["data"]
        return self.data[self.ends[at] : self.ends[at + 1]].tobytes()  # type: ignore[index]


class Datasets(Mapped):
    """Hugging Face datasets, saved as Arrow."""

    packages = ("torch", "datasets")

    def store(self, kind: str, place: Path) -> None:
        datasets = import_module("datasets")
        data = [each.read_bytes() for each in self.source(kind)]
        made = datasets.Dataset.from_dict(
            {"data": data}, datasets.Features({"data": datasets.Value("binary")})
        )
        made.save_to_disk(str(place), num_shards=SHARDS)

    def samples(self, kind: str) -> Any:
        return ArrowData(import_module("datasets").load_from_disk(str(self.place(kind))))


class ArrowData:
    """The bytes of its rows, many at once."""

    def __init__(self, rows: Any) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, at: int) -> Any:
        return self.rows[at]["data"]

    def __getitems__(self, at: list[int]) -> Any:
        return self.rows[at]["data"]


class Wids(Mapped):
    """WebDataset's indexed mode; it reads the same tar files."""

    packages = ("torch", "wids", "webdataset")

    def place(self, kind: str) -> Path:
        return self.folder / STORED[kind] / "webdataset"

    def store(self, kind: str, place: Path) -> None:
        WebDataset(self.folder).store(kind, place)

    def samples(self, kind: str) -> Any:
        count, suffix = len(self.source(STORED[kind])), SUFFIXES[STORED[kind]]
        shards = [
            {"url": str(path), "nsamples": len(range(at, count, SHARDS))}
            for at, path in enumerate(sorted(self.place(kind).glob("*.tar")))
        ]
        rows = import_module("wids").ShardListDataset(
            shards, localname=str, keep=True, transformations=[]
        )
        return WidsData(rows, f".{suffix}")


class WidsData:
    """The bytes of one part."""

    def __init__(self, rows: Any, part: str) -> None:
        self.rows, self.part = rows, part

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, at: int) -> Any:
        found = self.rows[at][self.part]
        return found.read() if hasattr(found, "read") else bytes(found)


# -- readers with a loader or a stream of their own ----------------------------------------------


class WebDataset(Reader):
    """Streams of tar files, with a buffer to shuffle."""

    packages = ("torch", "webdataset")

    def store(self, kind: str, place: Path) -> None:
        web, files = import_module("webdataset"), self.source(kind)
        place.mkdir()
        for shard in range(SHARDS):
            with web.TarWriter(str(place / f"{shard:05}.tar")) as out:
                for each in files[shard::SHARDS]:
                    out.write({"__key__": each.stem, SUFFIXES[kind]: each.read_bytes()})

    def batches(self, ask: Ask) -> Batches:
        web = import_module("webdataset")
        urls = [str(each) for each in sorted(self.place(ask.kind).glob("*.tar"))]
        data = web.WebDataset(urls, shardshuffle=SHARDS if ask.shuffled else False)
        if ask.shuffled:
            data = data.shuffle(1000)
        data = data.to_tuple(SUFFIXES[ask.kind]).map(_first)
        return _loader(data, ask._replace(shuffled=False), list)


def _first(values: Any) -> Any:
    return values[0]


class LitData(Reader):
    """LitData's chunks."""

    packages = ("torch", "litdata")
    # It waits for ever (its issue 636).
    can_change = False

    def store(self, kind: str, place: Path) -> None:
        import_module("litdata").optimize(
            _read_file, [str(each) for each in self.source(kind)], str(place),
            num_workers=1, chunk_bytes="64MB",
        )  # fmt: skip

    def batches(self, ask: Ask) -> Batches:
        lit = import_module("litdata")
        data = lit.StreamingDataset(str(self.place(ask.kind)), shuffle=ask.shuffled)
        loader = lit.StreamingDataLoader(
            data, batch_size=ask.batch, num_workers=ask.workers, collate_fn=_as_bytes,
            persistent_workers=ask.workers > 0,
        )  # fmt: skip
        return loader.__iter__  # type: ignore[no-any-return]


def _as_bytes(rows: Any) -> list[Any]:
    # It gives views, which cannot go from one process to another.
    return [bytes(each) for each in rows]


def _read_file(path: str) -> bytes:
    return Path(path).read_bytes()


class Mds(Reader):
    """MosaicML streaming, iterated."""

    packages = ("torch", "streaming")

    def store(self, kind: str, place: Path) -> None:
        write = import_module("streaming").MDSWriter
        with write(out=str(place), columns={"data": "bytes"}) as out:
            for each in self.source(kind):
                out.write({"data": each.read_bytes()})

    def batches(self, ask: Ask) -> Batches:
        streaming = import_module("streaming")
        streaming.base.util.clean_stale_shared_memory()
        data = streaming.StreamingDataset(
            local=str(self.place(ask.kind)), shuffle=ask.shuffled, batch_size=ask.batch
        )
        return _loader(data, ask._replace(shuffled=False), _data_of)


def _data_of(rows: Any) -> list[Any]:
    return [each["data"] for each in rows]


class TfRecord(Reader):
    """The `tfrecord` package, with a queue to shuffle."""

    packages = ("torch", "tfrecord")

    def store(self, kind: str, place: Path) -> None:
        tfrecord = import_module("tfrecord")
        place.mkdir()
        out = tfrecord.TFRecordWriter(str(place / "all.tfrecord"))
        for each in self.source(kind):
            out.write({"data": (each.read_bytes(), "byte")})
        out.close()
        index = import_module("tfrecord.tools.tfrecord2idx")
        index.create_index(str(place / "all.tfrecord"), str(place / "all.index"))

    def batches(self, ask: Ask) -> Batches:
        place = self.place(ask.kind)
        data = import_module("tfrecord.torch.dataset").TFRecordDataset(
            str(place / "all.tfrecord"), str(place / "all.index"), {"data": "byte"},
            shuffle_queue_size=1024 if ask.shuffled else None,
        )  # fmt: skip
        return _loader(data, ask._replace(shuffled=False), _data_of)


class Ffcv(Reader):
    """FFCV's own format and loader; its threads, of which it needs one at least."""

    packages = ("torch", "ffcv")
    kinds = ("large", "small", "arrays", "jpeg", "crop", "photo")

    def place(self, kind: str) -> Path:
        name = "ffcv-images-90" if kind in ("jpeg", *CROPPED) else "ffcv"
        return self.folder / STORED.get(kind, kind) / name

    def write(self, kind: str) -> None:
        place = self.place(kind)
        if not place.exists():
            part = place.with_name(f".{place.name}")
            self._store(kind, part)
            part.rename(place)

    def _store(self, kind: str, place: Path) -> None:
        numpy, fields = import_module("numpy"), import_module("ffcv.fields")
        write = import_module("ffcv.writer").DatasetWriter
        if kind == "arrays":
            rows = list(numpy.load(self.folder / "arrays.npy"))
            field = fields.NDArrayField(rows[0].dtype, rows[0].shape)
        elif kind in ("jpeg", *CROPPED):
            # It encodes them once more: with the quality that the files have, its own default.
            rows = Pictures(self.source(STORED[kind]))
            field = fields.RGBImageField(write_mode="jpg", jpeg_quality=90)
        else:
            rows = [numpy.frombuffer(each.read_bytes(), "u1") for each in self.source(kind)]
            field = fields.BytesField()
        samples = rows if isinstance(rows, Pictures) else Tuples(rows)
        write(str(place), {"data": field}, num_workers=1).from_indexed_dataset(samples)

    def batches(self, ask: Ask) -> Batches:
        loader, decoders = import_module("ffcv.loader"), import_module("ffcv.fields.decoders")
        to_tensor = import_module("ffcv.transforms").ToTensor
        crop = partial(decoders.RandomResizedCropRGBImageDecoder, (CROP, CROP))
        first = {
            "jpeg": decoders.SimpleRGBImageDecoder,
            **dict.fromkeys(CROPPED, crop),
            "arrays": decoders.NDArrayDecoder,
        }.get(ask.kind, decoders.BytesDecoder)()
        order = loader.OrderOption.RANDOM if ask.shuffled else loader.OrderOption.SEQUENTIAL
        made = loader.Loader(
            str(self.place(ask.kind)), batch_size=ask.batch, num_workers=max(1, ask.workers),
            order=order, os_cache=True, drop_last=False, pipelines={"data": [first, to_tensor()]},
        )  # fmt: skip
        return made.__iter__  # type: ignore[no-any-return]

    def pieces(self, batch: Any) -> Iterable[Any]:
        return (each.tobytes() for each in batch[0].numpy())

    def count(self, batch: Any) -> int:
        return len(batch[0])


class Tuples(list[Any]):
    """Rows as FFCV's writer wants them."""

    def __getitem__(self, at: Any) -> Any:
        return (super().__getitem__(at),)


class Pictures(list[Any]):
    """Paths, of which FFCV's writer gets the pixels."""

    def __getitem__(self, at: Any) -> Any:
        image = import_module("PIL.Image")
        return (import_module("numpy").array(image.open(super().__getitem__(at))),)


class PilData:
    """The rows of an array as images of PIL and back, as torchvision's data sets do."""

    def __init__(self, rows: Any) -> None:
        self.rows, self.image = rows, import_module("PIL.Image")
        self.array = import_module("numpy").array

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, at: int) -> Any:
        return self.array(self.image.fromarray(self.rows[at]))


class Pil(Reader):
    """An array in memory, each row an image of PIL first."""

    packages = ("torch", "PIL")
    kinds = ("arrays",)

    def write(self, kind: str) -> None:
        pass

    def batches(self, ask: Ask) -> Batches:
        rows = import_module("numpy").load(self.folder / "arrays.npy")
        return _loader(PilData(rows), ask, None)


READERS: dict[str, type[Reader]] = {
    "stoker": Stoker, "stoker, pread": StokerPread, "one memcpy": Memcpy, "decoder alone": Decoder,
    "our decoder alone": OwnDecoder,
    "numpy gather": Numpy, "LMDB": Lmdb, "FFCV": Ffcv, "Hugging Face datasets": Datasets,
    "files": Files, "PIL of an array": Pil, "h5py": H5py, "WebDataset": WebDataset, "wids": Wids,
    "LitData": LitData, "MosaicML streaming": Mds, "tfrecord": TfRecord,
}  # fmt: skip


# -- answers -------------------------------------------------------------------------------------


class Server:
    """Does what it is told with one reader."""

    def __init__(self, reader: Reader) -> None:
        self.reader, self.ready = reader, dict[Ask, Batches]()

    def missing(self) -> str | None:
        """Return the first package that is not there."""
        for name in self.reader.packages:
            try:
                import_module(name)
            except Exception as error:
                return f"{name}: {type(error).__name__}: {error}"[:200]
        return None

    def write(self, kind: str) -> int:
        self.reader.write(kind)
        place = self.reader.place(kind)
        return (
            sum(each.stat().st_size for each in (place, *place.rglob("*")) if each.is_file())
            if place.exists()
            else 0
        )

    def check(self, kind: str, workers: int) -> bool:
        """Say whether an epoch gives each sample once."""
        part, suffix = TELLING[kind], SUFFIXES[kind]
        paths = (self.reader.folder / kind / "files").glob(f"*.{suffix}")
        told = sum(zlib.crc32(each.read_bytes()[part]) for each in paths)
        found = sum(
            zlib.crc32(each[part])
            for batch in self._batches(Ask(kind, workers))()
            for each in self.reader.pieces(batch)
        )
        return told == found

    def read(self, ask: Ask, min_s: float, max_s: float) -> dict[str, float]:
        """Read epoch after epoch for a while."""
        batches, count = self._batches(ask), self.reader.count
        samples, start, used = 0, time.perf_counter(), _cpu()
        first = 0.0
        while True:
            for batch in batches():
                samples += count(batch)
                first = first or time.perf_counter() - start
                if time.perf_counter() - start > max_s:
                    break
            if not samples or time.perf_counter() - start >= min_s:
                break
        took = time.perf_counter() - start
        return {"samples": samples, "seconds": took, "first_s": first, "cpu_s": _cpu() - used}

    def _batches(self, ask: Ask) -> Batches:
        if ask not in self.ready:
            self.ready[ask] = self.reader.batches(ask)
        return self.ready[ask]

    def close(self) -> None:
        self.ready.clear()


def _cpu() -> float:
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


def main(name: str, folder: str) -> None:
    # What libraries print goes elsewhere: only answers go to whoever asks.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    server = Server(READERS[name](Path(folder)))
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            if asked["do"] == "read":
                found: Any = server.read(Ask(*asked["ask"]), asked["min_s"], asked["max_s"])
            else:
                found = getattr(server, asked["do"])(*asked.get("with", ()))
            answer = {"found": found}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"[:300]}
        answers.write(json.dumps(answer) + "\n")
    server.close()
    # Some libraries' threads do not end.
    os._exit(0)


if __name__ == "__main__":
    main(*itertools.islice(sys.argv, 1, 3))
