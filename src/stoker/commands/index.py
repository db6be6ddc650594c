"""`stoker index`: an index for archives that others have made."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from stoker.commands.parser import Parser, add_json
from stoker.data.archive import index_archive
from stoker.data.index import index_of
from stoker.plan.quote import quote
from stoker.units import plural

DESCRIPTION = """\
Write the index of a tar, a WebDataset, ZIP, TFRecord, HDF5 or LMDB beside it; they stay as they are.
Of a folder, all archives in it get one index. Payloads are not read, unless you want checksums.

  stoker index train.tar
  stoker index shards/ --checksums
"""


def run(words: list[str]) -> int:
    """Index archives."""
    parser = Parser("index", DESCRIPTION)
    parser.add_argument(
        "archives", metavar="ARCHIVE", type=Path, nargs="+", help="archives, or a folder of them"
    )
    parser.add_argument(
        "--checksums", action="store_true", help="read all bytes, so that verify can check them"
    )
    parser.add_argument("--force", action="store_true", help="overwrite an index")
    add_json(parser)
    args = parser.parse_args(words)
    told = []
    for path in args.archives:
        count = index_archive(path, checksums=args.checksums, force=args.force)
        told.append({"archive": str(path), "index": str(index_of(path)), "samples": count})
        if not args.json:
            print(f"wrote {index_of(path)} ({plural(count, 'sample')})")
    if args.json:
        print(json.dumps({"format": 1, "indexes": told}, indent=2))
    sys.stdout.flush()
    print(f"next: stoker ls {quote(str(args.archives[0]))}", file=sys.stderr)
    return 0
