"""Small packed data sets for tests, made with Python's own tarfile."""

from __future__ import annotations

import io
import tarfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stoker.data.formats import scan
from stoker.data.index import INDEX_NAME, IndexWriter, Part, Shard
from stoker.data.sample import join_name

Sample = tuple[str, Mapping[str, bytes], int | None]


def pack(
    folder: Path, samples: Sequence[Sample], *, per_shard: int = 4, labels: int = 0, **facts: Any
) -> Path:
    """Write samples to tar shards with an index beside them."""
    folder.mkdir(parents=True, exist_ok=True)
    writer, shards = IndexWriter(), []
    for number, start in enumerate(range(0, len(samples), per_shard)):
        path = folder / f"shard-{number:05}.tar"
        chosen = samples[start : start + per_shard]
        with tarfile.open(path, "w") as archive:
            for key, parts, _ in chosen:
                for extension, data in parts.items():
                    info = tarfile.TarInfo(f"{key}.{extension}")
                    info.size = len(data)
                    archive.addfile(info, io.BytesIO(data))
        with tarfile.open(path) as archive:
            at = {each.name: each.offset_data for each in archive}
        for key, parts, label in chosen:
            rows = [
                Part(name, number, at[f"{key}.{name}"], len(data), zlib.crc32(data))
                for name, data in parts.items()
            ]
            writer.add(key, rows, label)
        shards.append(Shard.of(path))
    writer.finish(folder / INDEX_NAME, shards, [f"class {each}" for each in range(labels)], **facts)
    return folder


def members_of(path: Path) -> dict[str, bytes]:
    """Return the files of an archive by name, from where the scanner says that they lie."""
    data = path.read_bytes()
    return {
        join_name(each.key, each.extension): data[each.offset : each.offset + each.size]
        for each in scan(path)
    }


def payload(number: int) -> bytes:
    """Bytes that tell which sample they are of, of different sizes, sometimes none."""
    return f"{number},".encode() * (number % 7)
