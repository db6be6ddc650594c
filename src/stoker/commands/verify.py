"""`stoker verify`: every checksum of a data set."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from stoker.commands.parser import Parser, add_json
from stoker.data.verify import Problem, count_samples, has_checksums, verify
from stoker.plan.quote import quote
from stoker.units import plural, printable

DESCRIPTION = """\
Read all of a packed data set or of an archive, compare every checksum, and name each sample
that is not what it was. Nothing is changed.

  stoker verify packed/
  stoker verify train.tar
"""


def run(words: list[str]) -> int:
    """Verify one data set."""
    parser = Parser("verify", DESCRIPTION)
    parser.add_argument("path", metavar="DATA", type=Path, help="a packed data set or an archive")
    add_json(parser)
    args = parser.parse_args(words)
    bad = []
    for problem in verify(args.path):
        bad.append(problem)
        if not args.json:
            print(_line(problem))
    is_covered = has_checksums(args.path)
    if args.json:
        told = {
            "format": 1,
            "samples": None if bad else count_samples(args.path),
            "has_checksums": is_covered,
            "problems": [each._asdict() for each in bad],
        }
        print(json.dumps(told, indent=2))
    elif not bad:
        count = count_samples(args.path)
        print(f"whole: {args.path}" + (f", {plural(count, 'sample')}" if count else ""))
    sys.stdout.flush()
    if not is_covered and not bad:
        print(
            "note: there are no checksums of its bytes; only its structure was checked\n"
            f"      stoker index {args.path} --checksums --force adds them",
            file=sys.stderr,
        )
    if bad:
        print(
            f"{plural(len(bad), 'problem')} in {args.path}\n"
            "next: copy the named archive again from where it came, or pack it anew",
            file=sys.stderr,
        )
        return 1
    print(f"next: stoker ls {quote(str(args.path))}", file=sys.stderr)
    return 0


def _line(problem: Problem) -> str:
    key = "" if problem.key is None else f"{problem.key}: "
    text = f"bad  {problem.file}: {key}{problem.why}"
    return printable(text.encode("utf-8", "backslashreplace").decode())
