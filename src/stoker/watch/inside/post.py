"""What a watched process says, and the socket through which it says it.

Datagrams to the scribe on the same machine: a watched process opens no file, so that no full
or slow disk can reach it. A message that cannot be sent now is sent later, or lost with a count.
Modules written in Python are not used: the program may have its own `json.py` or `socket.py`.
"""

from __future__ import annotations

import _socket
import errno
import os
from _json import encode_basestring_ascii

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

# Below the send buffer that Linux gives every socket (net.core.wmem_default, 208 KiB).
MAX_BYTES = 120_000
# The scribe is busy, or the process has no descriptors or memory left; it may have some soon.
LATER = frozenset((
    errno.EAGAIN, errno.ETIMEDOUT, errno.EINTR, errno.EMFILE, errno.ENFILE, errno.ENOBUFS,
    errno.ENOMEM,
))  # fmt: skip

_WORDS = {None: "null", True: "true", False: "false"}
_NOT_FINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


class Post:
    """Sends messages from this process to the scribe."""

    def __init__(self, address: str) -> None:
        self._address = address
        self.lost = 0
        self.is_dead = False

    def send(self, message: Mapping[str, object], patience_s: float = 0.0) -> bool:
        """Send one message; False if it did not go now. Never raises."""
        if self.is_dead:
            return True
        try:
            data = render_json({"pid": os.getpid(), **message}).encode()
        except Exception:  # whatever the program's objects raise; RecursionError
            data = b""
        if not 0 < len(data) <= MAX_BYTES:
            self.lost += 1
            return True
        try:
            self._send(data, patience_s)
        except (OSError, ValueError) as error:
            if isinstance(error, TimeoutError) or getattr(error, "errno", 0) in LATER:
                return False
            self.is_dead = True
        return True

    def _send(self, data: bytes, patience_s: float) -> None:
        # A socket for one message: one that is kept could be closed, and its number used again.
        channel = _channel()
        try:
            channel.settimeout(patience_s)
            channel.sendto(data, self._address)
        finally:
            channel.close()


def _channel() -> _socket.socket:
    channel = _socket.socket(_socket.AF_UNIX, _socket.SOCK_DGRAM)
    if channel.fileno() > 2:
        return channel
    # In the place of a closed standard stream it would get what the program writes there.
    from fcntl import F_DUPFD_CLOEXEC, fcntl

    try:
        higher = fcntl(channel.fileno(), F_DUPFD_CLOEXEC, 3)
    finally:
        channel.close()
    return _socket.socket(_socket.AF_UNIX, _socket.SOCK_DGRAM, 0, higher)


def render_json(value: object) -> str:
    """Return a value as JSON; what JSON has no form for becomes the name of its type.

    >>> render_json({"a": [1, 2.5, None, True, "é"], "b": range(3)})
    '{"a":[1,2.5,null,true,"\\\\u00e9"],"b":"range"}'
    """
    if isinstance(value, str):
        return encode_basestring_ascii(value)
    if isinstance(value, float):
        text = float.__repr__(value)
        return text if value - value == 0 else _NOT_FINITE[text]
    if value is None or isinstance(value, bool):
        return _WORDS[value]
    if isinstance(value, int):
        return int.__repr__(value)
    if isinstance(value, (list, tuple)):
        return f"[{','.join([render_json(each) for each in value])}]"
    if isinstance(value, dict):
        pairs = [f"{encode_basestring_ascii(str(key))}:{render_json(each)}"
                 for key, each in value.items()]  # fmt: skip
        return f"{{{','.join(pairs)}}}"
    return _render_other(value)


def _render_other(value: object) -> str:
    kind = type(value)
    if kind.__module__ == "numpy":  # a number of workers may be one of NumPy's
        try:
            return int.__repr__(value.__index__())  # type: ignore[attr-defined]
        except (AttributeError, TypeError):
            pass
    return encode_basestring_ascii(kind.__name__)
