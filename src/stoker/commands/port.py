"""`stoker port`: rewrite a one-GPU script for several, as a diff to review."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from pathlib import Path

from stoker.commands.files import check_free, write_file
from stoker.commands.parser import Parser, add_json, typed
from stoker.engine.command import find_python
from stoker.errors import ScriptError, StokerError, UsageError
from stoker.units import parse_positive

TYPE_CHECKING = False
if TYPE_CHECKING:
    from stoker.port.compare import Comparison
    from stoker.port.rewrite import Ported

DESCRIPTION = """\
Rewrite a PyTorch script of one GPU for several, and print the change as a diff. Nothing is
written unless -o or --in-place says so. What cannot be ported safely is refused, with the line
and the reason (exit code 1).

  stoker port train.py --to ddp
  stoker port train.py --to ddp --check
  stoker port train.py --to fsdp -o train_fsdp.py
  stoker port train.py --to ddp --check -- config.yaml
"""
TARGETS = ("ddp", "fsdp", "deepspeed", "horovod", "accelerate")


def run(words: list[str]) -> int:
    """Port one script."""
    args, rest = _read(words)
    need_libcst()
    from stoker.port.answer import ported_json, render_comparison, render_refusals
    from stoker.port.rewrite import port_script

    path = Path(args.script)
    out = path if args.in_place else Path(args.output) if args.output else None
    if out is not None and not args.in_place:
        check_free(out, force=args.force)
    ported = port_script(_text(path), args.to, args.script)
    found = None
    if args.check and not ported.refusals and not ported.is_old:
        found = _check(args, path, ported, rest)
    if args.json:
        print(json.dumps(ported_json(ported, found), indent=2))
    elif not ported.refusals:
        sys.stdout.write(ported.diff)
    sys.stdout.flush()
    if ported.refusals:
        print(render_refusals(ported), file=sys.stderr)
        print(f"{args.script} is not ported: nothing was written", file=sys.stderr)
        return 1
    if ported.is_old:
        print(f"{args.script} is ported already", file=sys.stderr)
        print(f"next: stoker run --procs 2 {shlex.quote(args.script)}", file=sys.stderr)
        return 0
    for note in ported.notes:
        print(f"note: {note}", file=sys.stderr)
    if found is not None:
        print(render_comparison(found), file=sys.stderr)
        if not found.is_same:
            print("nothing was written", file=sys.stderr)
            return 1
    return _finish(args, out, ported)


def need_libcst() -> None:
    """Raise StokerError if the library that rewrites sources is not there."""
    from importlib.util import find_spec

    if find_spec("libcst") is None:
        raise StokerError(
            "stoker port needs libcst",
            why="it keeps comments and formatting, and Stoker is installed without it",
            fix="pip install 'stoker[port]'",
        )


def _read(words: list[str]) -> tuple[argparse.Namespace, list[str]]:
    rest: list[str] = []
    if "--" in words:
        at = words.index("--")
        words, rest = words[:at], words[at + 1 :]
    parser = Parser("port", DESCRIPTION)
    parser.add_argument("script", help="the training script")
    parser.add_argument("--to", required=True, choices=TARGETS, help="what to port it to")
    parser.add_argument("-o", "--output", metavar="FILE", help="write the port to FILE")
    parser.add_argument("--in-place", action="store_true", help="write it over the script")
    parser.add_argument("--force", action="store_true", help="-o may overwrite a file")
    parser.add_argument("--check", action="store_true", help="run both here and compare losses")
    parser.add_argument("--procs", type=typed(parse_positive), default=2, metavar="N",
                        help="ranks of the check (default: 2)")  # fmt: skip
    parser.add_argument("--steps", type=typed(parse_positive), default=6, metavar="N",
                        help="steps of the check (default: 6)")  # fmt: skip
    parser.add_argument("--python", metavar="P", help="the interpreter of the check")
    add_json(parser)
    args = parser.parse_args(words)
    if args.in_place and args.output:
        raise UsageError("--in-place and -o together", why="the port is written once",
                         fix="one of them")  # fmt: skip
    if args.check and args.to == "horovod":
        raise UsageError("--check cannot start Horovod", why="it starts plain processes, Horovod needs mpirun",
                         fix="mpirun -np 2 python FILE, and compare what it prints")  # fmt: skip
    return args, rest


def _text(path: Path) -> str:
    try:
        with path.open(encoding="utf-8", newline="") as stream:
            return stream.read()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise ScriptError(f"cannot read `{path}`", why=why, fix="check the path") from None


def _check(args: argparse.Namespace, path: Path, ported: Ported, rest: list[str]) -> Comparison:
    from stoker.port.compare import Trial, compare_losses

    python = find_python(args.python, os.environ)
    return compare_losses(path, ported.after, Trial(python, args.procs, args.steps, tuple(rest)))


def _finish(args: argparse.Namespace, out: Path | None, ported: Ported) -> int:
    if out is None:
        words = ["stoker", "port", args.script, "--to", args.to]
        more = "--in-place" if args.check else "--check"
        print(f"next: {shlex.join(words)} {more}", file=sys.stderr)
        return 0
    write_file(out, ported.after, force=True)
    print(f"written: {out}", file=sys.stderr)
    print(f"next: stoker run --procs 2 {shlex.quote(str(out))}", file=sys.stderr)
    return 0
