"""`stoker ls`: what is in a packed data set or an archive."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stoker.commands.parser import Parser, add_json
from stoker.data.sample import Sample
from stoker.data.unpack import find_listed
from stoker.plan.quote import quote
from stoker.units import plural, printable

DESCRIPTION = """\
List the samples of a packed data set or of any tar (also a compressed one), ZIP, TFRecord, HDF5
or LMDB: key, parts with their sizes in bytes, label.

  stoker ls packed/
  stoker ls train.tar
"""


def run(words: list[str]) -> int:
    """List samples."""
    parser = Parser("ls", DESCRIPTION)
    parser.add_argument("path", metavar="DATA", type=Path, help="a packed data set or an archive")
    add_json(parser)
    args = parser.parse_args(words)
    source = find_listed(args.path)
    count = 0
    if args.json:
        print('{"format": 1, "samples": [', end="")
    for sample in source.samples():
        if args.json:
            told = json.dumps(_facts(sample, source.label_names))
            print(("," if count else "") + "\n" + told, end="")
        else:
            print(_line(sample, source.label_names))
        count += 1
    if args.json:
        print("\n]}")
    sys.stdout.flush()
    print(
        f"{plural(count, 'sample')}\nnext: stoker verify {quote(str(args.path))}", file=sys.stderr
    )
    return 0


def _facts(sample: Sample, names: Sequence[str]) -> dict[str, Any]:
    parts = [
        {"extension": each.extension, "bytes": each.size, "offset": each.offset, "crc32": each.crc}
        for each in sample.files
    ]
    return {
        "key": sample.key,
        "label": sample.label,
        "label_name": _name(sample, names),
        "parts": parts,
    }


def _line(sample: Sample, names: Sequence[str]) -> str:
    parts = "  ".join(f"{each.extension or '-'} {each.size}" for each in sample.files)
    name = _name(sample, names)
    label = "" if sample.label is None else f"  label {sample.label}"
    text = f"{sample.key}  {parts}{label}" + (f" ({name})" if name else "")
    return printable(text.encode("utf-8", "backslashreplace").decode())


def _name(sample: Sample, names: Sequence[str]) -> str | None:
    label = sample.label
    return names[label] if label is not None and 0 <= label < len(names) else None
