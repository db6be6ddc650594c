"""What _gather.c does, in Python: for machines on which it was not compiled. Same results."""

from __future__ import annotations

import mmap
import os
import resource
from array import array
from collections.abc import Sequence
from operator import sub

_MASK = (1 << 64) - 1
# Odd numbers of many scattered bits: the finalizer of MurmurHash3.
_FIRST, _SECOND = 0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53

# On fewer values some orders come up more often than others, whatever the keys are.
MIN_BITS = 8

# What `lay_out` found.
READY, NOT_MAPPED, OUTSIDE = 0, 1, 2
# The part of a sample that has none; the length of a shard that is not open yet.
NONE = _MASK


def map_file(file: int, size: int) -> memoryview:
    """Map the bytes of an open file."""
    return memoryview(mmap.mmap(file, size, access=mmap.ACCESS_READ) if size else b"")


def address(mapping: memoryview) -> memoryview:
    """Return what `copy` takes a mapping by."""
    return mapping


def memory(size: int) -> bytearray:
    """Return memory for a batch."""
    return bytearray(size)


def select(
    first: memoryview, extension: memoryview, samples: array[int], wanted: int, parts: array[int]
) -> int:
    """Find the part of one kind of each sample; return how many samples have none."""
    missing = 0
    for at, sample in enumerate(samples):
        if sample >= len(first) - 1:
            raise IndexError(f"there is no sample {sample}")
        begin, end = first[sample], first[sample + 1]
        if end > len(extension) or begin > end:
            raise ValueError("the index is damaged")
        part = next((each for each in range(begin, end) if extension[each] == wanted), NONE)
        parts[at] = part
        missing += part == NONE
    return missing


def lay_out(  # noqa: PLR0913, PLR0917  the columns of an index, as in C
    lengths: array[int],
    shard: memoryview,
    offset: memoryview,
    size: memoryview,
    parts: array[int],
    ends: array[int],
) -> tuple[int, int, bool]:
    """Find where each part ends in a buffer, how large that is, and whether all are equally large.

    Or what is in the way.
    """
    end, is_even = 0, True
    for at, part in enumerate(parts):
        if part >= len(shard) or shard[part] >= len(lengths):
            raise IndexError(f"there is no part {part}")
        length = lengths[shard[part]]
        if length == NONE:
            return NOT_MAPPED, shard[part], is_even
        if offset[part] + size[part] > length:
            return OUTSIDE, at, is_even
        is_even &= size[part] == size[parts[0]]
        end += size[part]
        ends[at] = end
    return READY, end, is_even


def copy(  # noqa: PLR0913, PLR0917  the columns of an index, as in C
    lengths: array[int],
    mappings: Sequence[memoryview],
    shard: memoryview,
    offset: memoryview,
    parts: array[int],
    ends: array[int],
    out: memoryview,
    ask: bool,
    threads: int,
) -> int:
    """Copy parts of mapped files into a buffer; return how often that had to wait."""
    # A memoryview does not tell which mapping it is of; threads would be in each other's way.
    del ask, threads
    if not len(lengths) == len(mappings) or not len(parts) == len(ends):
        raise ValueError("the columns differ in length")
    waits, begin = _num_waits(), 0
    for part, end in zip(parts, ends, strict=True):
        number, start = shard[part], offset[part]
        if lengths[number] == NONE or start + end - begin > lengths[number]:
            raise IndexError("a part is not in its file")
        out[begin:end] = mappings[number][start : start + end - begin]
        begin = end
    return _num_waits() - waits


def read(  # noqa: PLR0913, PLR0917  as in C
    files: array[int],
    offset: memoryview,
    parts: array[int],
    ends: array[int],
    out: memoryview,
    ask: bool,
) -> tuple[int, int]:
    """Read parts of open files into a buffer.

    Return which one ended early, or -1, and how often that had to wait.
    """
    waits, begin = _num_waits(), 0
    if ask:
        for file, part, size in zip(files, parts, map(sub, ends, (0, *ends)), strict=True):
            os.posix_fadvise(file, offset[part], size, os.POSIX_FADV_WILLNEED)
    for at, (file, part, end) in enumerate(zip(files, parts, ends, strict=True)):
        start = offset[part] - begin
        while begin < end:
            got = os.preadv(file, [out[begin:end]], start + begin)
            if got == 0:
                return at, _num_waits() - waits
            begin += got
    return -1, _num_waits() - waits


def _num_waits() -> int:
    """Return how often this thread has had to wait, for a disk or a server."""
    kind = getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF)
    return resource.getrusage(kind).ru_nvcsw


def permute(length: int, keys: array[int], start: int, step: int, out: array[int]) -> None:
    """Fill in the samples at positions of a shuffled epoch."""
    count = len(out)
    if count and not 0 <= start <= start + (count - 1) * step < length:
        raise IndexError("the epoch has no such position")
    for at in range(count):
        out[at] = _permuted(start + at * step, length, keys)


def _permuted(position: int, length: int, keys: Sequence[int]) -> int:
    """Return where a position goes: a Feistel network, walked until it ends within the length."""
    bits = max(MIN_BITS, (length - 1).bit_length())
    low_bits = bits // 2
    low_mask, high_mask = (1 << low_bits) - 1, (1 << (bits - low_bits)) - 1
    while True:
        low, high = position & low_mask, position >> low_bits
        for at in range(0, len(keys) - 1, 2):
            low ^= _mixed(high + keys[at] & _MASK) & low_mask
            high ^= _mixed(low + keys[at + 1] & _MASK) & high_mask
        position = high << low_bits | low
        if position < length:
            return position


def _mixed(value: int) -> int:
    value = (value ^ (value >> 33)) * _FIRST & _MASK
    value = (value ^ (value >> 33)) * _SECOND & _MASK
    return value ^ (value >> 33)
