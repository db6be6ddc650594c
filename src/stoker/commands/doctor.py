"""`stoker doctor`: what is there and what is missing; what a folder of data needs."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from stoker.commands.parser import Parser, add_json, typed
from stoker.units import parse_time, plural

DESCRIPTION = """\
Say what Stoker finds on this machine, what is missing and how to get it. With a folder: how
many files it has and how large, what packing them would make, and how much faster they would
be read, measured on some of them. Nothing is changed.

  stoker doctor
  stoker doctor /scratch/project/images
"""


def run(words: list[str]) -> int:
    """Look at the machine, or at a folder."""
    parser = Parser("doctor", DESCRIPTION)
    parser.add_argument("folder", metavar="DIR", nargs="?", type=Path, help="a folder of data")
    parser.add_argument(
        "--limit", type=typed(parse_time), metavar="T",
        help="count files for at most so long, and read for about so long (default 10s)",
    )  # fmt: skip
    parser.add_argument("--no-read", action="store_true", help="count only, measure no reading")
    add_json(parser)
    args = parser.parse_args(words)
    if args.folder is None:
        if args.limit is not None or args.no_read:
            parser.error("--limit and --no-read need a folder")
        return _machine(args)
    return _folder(args)


def _machine(args: argparse.Namespace) -> int:
    from stoker.advise.equipment import look
    from stoker.report.doctor import items_json, render_items

    items = list(look())
    print(json.dumps(items_json(items), indent=2) if args.json else render_items(items))
    sys.stdout.flush()
    missing = [each for each in items if not each.is_there]
    if missing:
        print(f"{plural(len(missing), 'thing')} missing; not all are needed", file=sys.stderr)
    has_slurm = any(each.name == "cluster" and each.is_there for each in items)
    print(f"next: stoker {'plan --gpus 1 train.py' if has_slurm else 'demo'}", file=sys.stderr)
    return 0


def _folder(args: argparse.Namespace) -> int:
    from stoker.data.survey.race import try_race
    from stoker.data.survey.survey import survey
    from stoker.report.doctor import next_command, render_survey, survey_json

    limit_s = args.limit or 10
    found = survey(args.folder, limit_s)
    is_read = found.is_plain and not args.no_read
    raced = try_race(found.path, found.names, limit_s) if is_read else None
    if args.json:
        print(json.dumps(survey_json(found, raced), indent=2))
    else:
        print(render_survey(found, raced))
    sys.stdout.flush()
    print(f"next: {next_command(found)}", file=sys.stderr)
    return 0
