"""The way to the compute nodes, as far as this machine can see it."""

from __future__ import annotations

import socket
import struct
from pathlib import Path

ROUTES = Path("/proc/net/route")


def interface_to(host: str, routes: Path = ROUTES) -> str | None:
    """Return the interface by which this machine reaches a host; `None` if it cannot be told."""
    if not host:
        return None
    try:
        address = struct.unpack("=I", socket.inet_aton(socket.gethostbyname(host)))[0]
        lines = routes.read_text().splitlines()[1:]
    except (OSError, UnicodeError):
        return None
    best: tuple[int, str] | None = None
    for line in lines:
        words = line.split()
        try:
            target, mask = int(words[1], 16), int(words[7], 16)
        except (IndexError, ValueError):
            continue
        # A default route leads everywhere, so it says nothing about the nodes.
        size = mask.bit_count() if mask else 0
        if size and address & mask == target and (best is None or size > best[0]):
            best = (size, words[0])
    return best[1] if best and best[1] != "lo" else None
