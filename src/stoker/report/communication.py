"""What `stoker bench comm` measured, as text and as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from stoker.report.table import columns
from stoker.scale.collectives import Bucket, Communication, Expected, Timing
from stoker.units import plural

# Less than this between two bucket sizes is noise.
NOTABLE = 1.1
# Half of a link is what a good set-up reaches; a tenth means that another way is taken.
POOR = 50
ALONE = "One rank has nobody to send to: these are the calls alone. --procs N starts more, one for each GPU."
_SLOW_NETWORK = (
    " Large messages (--sizes 256M), one rank for each GPU, and the right interface "
    "(NCCL_SOCKET_IFNAME, NCCL_DEBUG=INFO says which is taken) bring it closer."
)


def render_communication(measured: Communication) -> str:
    """Return a table of the collectives, and one of the buckets."""
    head = (
        f"{plural(measured.ranks, 'rank')} on {plural(measured.nodes, 'node')}, "
        f"{measured.backend} on {measured.device}"
    )
    rows = [["", "size", "time", "80 % within", "algorithm", "bus"]]
    rows += [_row(each, measured.ranks > 1) for each in measured.timings]
    lines = [head, "", *columns(rows)]
    if measured.ranks == 1:
        lines += ["", ALONE]
    if measured.expected is not None:
        lines += ["", _comparison(measured.best_bus_gbps, measured.expected)]
    if measured.buckets:
        table = [["bucket_cap_mb", "step", "80 % within"]]
        table += [
            [str(each.megabytes), _time(each.median_s), _range(each)] for each in measured.buckets
        ]
        size = f"{measured.parameters_mb:.0f} MiB of gradients"
        lines += ["", f"A DDP step with {size}, by the size of its buckets:", *columns(table, [])]
        lines += [_verdict(measured.buckets)]
    return "\n".join(lines)


def communication_json(measured: Communication) -> dict[str, Any]:
    """Return what was measured, in bytes, seconds and 10⁹ bytes a second."""
    return asdict(measured)


def _row(timing: Timing, is_carried: bool) -> list[str]:
    rates = timing.algorithm_gbps, timing.bus_gbps
    told = [f"{each:.3g} GB/s" if is_carried else "–" for each in rates]
    times = [_time(timing.median_s), _range(timing)]
    return [timing.operation, _size(timing.size), *times, *told]


def _comparison(reached: float, expected: Expected) -> str:
    share = 100 * reached / expected.gbps
    advice = "" if share >= POOR else _SLOW_NETWORK
    return (
        f"Between nodes all-reduce carries {reached:.3g} GB/s, {share:.0f} % of the "
        f"{expected.gbps:.3g} GB/s of a node ({expected.title}).{advice}"
    )


def _verdict(buckets: tuple[Bucket, ...]) -> str:
    best = min(buckets, key=lambda each: each.median_s)
    usual = next((each for each in buckets if each.megabytes == 25), best)
    if best is usual or usual.median_s < NOTABLE * best.median_s or best.high_s > usual.low_s:
        return "No size is clearly better than PyTorch's 25."
    gain = usual.median_s / best.median_s
    return (
        f"{best.megabytes} is {gain:.1f} times as fast as PyTorch's 25: "
        f"DistributedDataParallel(…, bucket_cap_mb={best.megabytes})."
    )


def _range(timing: Timing | Bucket) -> str:
    return f"{_time(timing.low_s)} – {_time(timing.high_s)}"


def _time(seconds: float) -> str:
    """Write a short time.

    >>> _time(0.0000123), _time(0.0234), _time(2)
    ('12.3 µs', '23.4 ms', '2 s')
    """
    for unit, scale in (("s", 1.0), ("ms", 1e3)):
        if seconds * scale >= 1:
            return f"{seconds * scale:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"


def _size(size: int) -> str:
    """Write a size as it was given.

    >>> _size(4096), _size(16 << 20), _size(100)
    ('4 KiB', '16 MiB', '100 B')
    """
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= scale:
            return f"{size / scale:.4g} {unit}"
    return f"{size} B"
