"""`stoker unpack`: files out of a data set."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from stoker.commands.parser import Parser, add_json
from stoker.data.unpack import unpack
from stoker.plan.quote import quote
from stoker.units import plural

DESCRIPTION = """\
Write the files of a packed data set or of an archive to a folder: all, or those of some keys.
Nothing is ever written outside of that folder.

  stoker unpack packed/ images/
  stoker unpack train.tar some/ cats/0001 cats/0002
"""


def run(words: list[str]) -> int:
    """Unpack samples."""
    parser = Parser("unpack", DESCRIPTION)
    parser.add_argument("path", metavar="DATA", type=Path, help="a packed data set or an archive")
    parser.add_argument("dest", metavar="DEST", type=Path, help="the folder that files go to")
    parser.add_argument("keys", metavar="KEY", nargs="*", default=[], help="samples (default: all)")
    parser.add_argument("--force", action="store_true", help="overwrite files that are there")
    add_json(parser)
    args = parser.parse_args(words)
    done = unpack(args.path, args.dest, args.keys, force=args.force)
    if args.json:
        print(json.dumps({"format": 1, "dest": str(args.dest), **done._asdict()}, indent=2))
    else:
        print(
            f"wrote {plural(done.files, 'file')} of {plural(done.samples, 'sample')} "
            f"({plural(done.bytes, 'byte')})"
        )
    sys.stdout.flush()
    print(f"next: ls {quote(str(args.dest))}", file=sys.stderr)
    return 0
