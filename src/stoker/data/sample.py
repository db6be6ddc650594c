"""A sample: one key with its parts, by WebDataset's rule, and the bytes of a part on their way."""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterable, Iterator
from typing import IO, NamedTuple, Protocol

from stoker.data.checksum import crc32

CHUNK = 1 << 20
_HIDDEN = re.compile(r"(^|/)\.(?!\.?(/|$))|^__MACOSX/")
# The part that holds the number of a class, as WebDataset wants it.
LABEL = "cls"
# Labels are nearer to 0 than this.
LABEL_LIMIT = 1 << 31


class File(NamedTuple):
    """The bytes of one part: a file, or a piece of an archive.

    `head` stands before the piece when it is written to a file of its own. `held` has the bytes
    where they cannot be read from the path again: those of a compressed archive.
    """

    extension: str
    path: str
    offset: int | None = None
    size: int = 0
    packed: int | None = None
    crc: int | None = None
    head: bytes = b""
    held: Held | None = None


class Held(Protocol):
    """Bytes that were kept, in memory or in a temporary file."""

    def content(self, file: File) -> Content:
        """Return them."""


class Sample(NamedTuple):
    """One sample of a source."""

    key: str
    files: tuple[File, ...]
    label: int | None = None


def split_name(name: str) -> tuple[str, str]:
    """Return key and extension: the path up to the first dot of its last component, and the rest.

    >>> split_name("a.b/0001.seg.png"), split_name("README"), split_name(".hidden")
    (('a.b/0001', 'seg.png'), ('README', ''), ('.hidden', ''))
    """
    slash = name.rfind("/") + 1
    dot = name.find(".", slash)
    if dot <= slash or dot == len(name) - 1:
        return name, ""
    return name[:dot], name[dot + 1 :]


def is_hidden(key: str) -> bool:
    """Say whether a file is one that people do not see, or that macOS has put into an archive.

    >>> [is_hidden(each) for each in ("cat/._1", ".git/config", "__MACOSX/1", "../cat/1", "1")]
    [True, True, True, False, False]
    """
    return _HIDDEN.search(key) is not None


def join_name(key: str, extension: str) -> str:
    """Return the name that `split_name` takes apart."""
    return f"{key}.{extension}" if extension else key


def read_label(text: bytes) -> int | None:
    """Return the number in a part `cls`; `None` if it is none. Negative ones stand for no class.

    >>> read_label(b"7\\n"), read_label(b"-1"), read_label(b"cat")
    (7, -1, None)
    """
    digits = text.strip().removeprefix(b"-")
    return int(text) if digits.isdigit() and int(digits) < LABEL_LIMIT else None


def encode(name: str) -> bytes:
    """Return a name as the file system has it, also one that is not UTF-8."""
    return name.encode("utf-8", "surrogateescape")


def decode(name: bytes) -> str:
    """Return the name that `encode` writes."""
    return name.decode("utf-8", "surrogateescape")


class Content(NamedTuple):
    """One part's bytes: in memory, or a stream if they are too many for that.

    `made` is a part that packing adds; `crc` is known where the bytes were read.
    """

    extension: str
    size: int
    data: bytes | None = None
    stream: Callable[[], Iterator[bytes]] | None = None
    mtime_ns: int = 0
    made: bool = False
    crc: int | None = None

    def chunks(self) -> Iterator[bytes]:
        """Yield the bytes in order."""
        if self.data is not None:
            yield self.data
        elif self.stream is not None:
            yield from self.stream()


class Sink:
    """A file that is written from its start to its end, and knows where it is."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file, self.position = file, 0

    def write(self, data: bytes | memoryview) -> None:
        """Write and move on."""
        self.file.write(data)
        self.position += len(data)

    def write_content(self, content: Content) -> int:
        """Write the bytes of a part; return their checksum."""
        if content.crc is not None and content.data is not None:
            self.write(content.data)
            return content.crc
        crc = 0
        for chunk in content.chunks():
            self.write(chunk)
            crc = crc32(chunk, crc)
        return crc

    def patch(self, offset: int, data: bytes) -> None:
        """Write over what was written before."""
        self.file.seek(offset)
        self.file.write(data)
        self.file.seek(self.position)


def first_repeated(keys: Callable[[], Iterable[str]]) -> str | None:
    """Return a key that is there twice; 8 bytes of memory a key, whatever its length."""
    buckets = [array("q") for _ in range(256)]
    for key in keys():
        number = hash(key)
        buckets[number & 255].append(number)
    twice: set[int] = set()
    for bucket in buckets:
        seen: set[int] = set()
        if len(set(bucket)) < len(bucket):
            twice.update(each for each in bucket if each in seen or seen.add(each))  # type: ignore[func-returns-value]
    if not twice:
        return None
    met: set[str] = set()
    for key in keys():
        if hash(key) in twice:
            if key in met:
                return key
            met.add(key)
    return None
