"""`stoker run`: a program on this machine, watched, and then what it did."""

from __future__ import annotations

import os
import time
from pathlib import Path

from stoker.commands.parser import Parser, add_json, split_command, typed
from stoker.engine.command import find_python, given_environment, make_command
from stoker.engine.task import read_task
from stoker.errors import ScriptError
from stoker.units import parse_positive
from stoker.watch.entry import EXACT, is_watched, watched_environment

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from stoker.engine.processes import Start
    from stoker.engine.task import Task
    from stoker.watch.folder import RunFolder
    from stoker.watch.scribe import Scribe

LIVE_S = 10.0

DESCRIPTION = """\
Run a training script unchanged and show where its time went. Exit code, output and signals
are the script's own.

  stoker run train.py --epochs 3
  stoker run -m package.train --epochs 3
  stoker run --procs 4 train.py
  stoker run -- torchrun --nproc_per_node 4 train.py
"""


def run(words: list[str]) -> int:
    """Run one program under watch."""
    parser = _parser()
    options, command, is_command = split_command(parser, words)
    args = parser.parse_args(options)
    if args.is_module and command[:1] == ["--"]:
        command = command[1:]
    python = find_python(args.python, os.environ)
    runner = (str(EXACT),) if args.lines else ()
    start = make_command(
        command, is_module=args.is_module, is_command=is_command, python=python, runner=runner
    )
    env = given_environment()
    asked: tuple[str, ...] = ()
    if args.procs is not None:
        start, added = _several(args, command, is_command, python, runner)
        env |= added
        asked = _asked(args, command)
    elif is_command and Path(command[0]).name == "accelerate":
        from stoker.plan.combinations import refuse_accelerate

        refuse_accelerate(command)
    if is_watched(env):
        # A run inside a run: the outer one watches already.
        os.execvpe(start[0], start, env)
    return _watch(args, start, command[0], env, asked)


def _several(
    args: argparse.Namespace,
    command: list[str],
    is_command: bool,
    python: str,
    runner: tuple[str, ...],
) -> Start:
    from stoker.engine.processes import Wanted, make_start, refuse_launch

    refuse_launch(args.procs, os.environ, is_command=is_command)
    wanted = Wanted(args.procs, tuple(command), python, args.is_module, args.framework, runner)
    return make_start(wanted, os.environ)


def _asked(args: argparse.Namespace, command: list[str]) -> tuple[str, ...]:
    """Return the words that ask for these processes again, whatever they are started with."""
    python = () if args.python is None else ("--python", args.python)
    framework = () if args.framework == "auto" else ("--framework", args.framework)
    module = ("-m",) if args.is_module else ()
    return (*python, "--procs", str(args.procs), *framework, *module, *command)


def _parser() -> Parser:
    parser = Parser("run", DESCRIPTION, "stoker run [options] script [its own arguments]")
    parser.add_argument("-o", "--output", metavar="DIR", type=Path, help="the run folder")
    parser.add_argument("--python", metavar="P", help="the interpreter (default: the active one)")
    parser.add_argument("--lines", action="store_true", help="count lines exactly (line_profiler)")
    parser.add_argument("--live", action="store_true", help=f"say every {LIVE_S:.0f} s how it goes")
    parser.add_argument("--quiet", action="store_true", help="no report at the end")
    parser.add_argument("-m", dest="is_module", action="store_true", help="run a module")
    parser.add_argument(
        "--procs",
        type=typed(parse_positive),
        metavar="N",
        help="start N processes, as the framework of the script wants it",
    )
    parser.add_argument(
        "--framework",
        default="auto",
        metavar="F",
        help="what the processes are of (default: read from the script)",
    )
    add_json(parser)
    return parser


def _watch(
    args: argparse.Namespace,
    command: tuple[str, ...],
    name: str,
    env: dict[str, str],
    asked: tuple[str, ...],
) -> int:
    from stoker.engine.local import Child, end_as, wait
    from stoker.watch.scribe import say

    task = read_task(env)
    is_first = task is None or task.rank == 0
    scribe: Scribe | None = None
    try:
        scribe = _open_scribe(args, command, name, task, asked)
        env = watched_environment(
            env, folder=scribe.folder.path, address=scribe.address, exact_lines=args.lines
        )
    except OSError as error:
        where = f": {error.filename}" if error.filename else ""
        say(f"not recording: {error.strerror or error}{where}; the program runs on")
    try:
        child = Child(command, env)
    except OSError as error:
        if scribe is not None:
            scribe.close(127, is_first=is_first)
        raise ScriptError(
            f"`{command[0]}` cannot be started",
            why=error.strerror or str(error),
            fix="check that its interpreter exists (the first line of the file names it)",
        ) from None
    if scribe is None:
        return end_as(wait(child))
    if args.live:
        scribe.on_reading = _live(scribe)
    try:
        code = scribe.attend(child)
    except Exception as error:  # whatever is wrong with us, the program runs on
        say(f"recording stopped: {type(error).__name__}: {error}; the program goes on")
        code = wait(child)
    try:
        scribe.close(code, is_first=is_first)
    except Exception as error:
        say(f"recording stopped: {type(error).__name__}: {error}")
    if is_first and not args.quiet:
        try:
            _report(args, scribe.folder)
        except Exception as error:  # the program's own exit code matters more
            say(f"no report: {type(error).__name__}: {error}; see {scribe.folder.path}")
    return end_as(code)


def _open_scribe(
    args: argparse.Namespace,
    command: tuple[str, ...],
    name: str,
    task: Task | None,
    asked: tuple[str, ...],
) -> Scribe:
    from stoker.watch.folder import join_run, new_run
    from stoker.watch.record import begin_run
    from stoker.watch.scribe import Scribe, say

    start = time.time()
    if task is None:
        folder = new_run(name, args.output, start)
        begin_run(folder, command, start, asked=asked)
        return Scribe(folder, start, say, os.getpid())
    from stoker.watch.launcher import find_launcher

    folder = join_run(task, name, args.output)
    if task.rank == 0:
        begin_run(folder, command, start, launch=task.launch_of_all)
    # The launcher's daemon is above all tasks on this machine; one of us reads for all.
    is_reader = folder.claim(os.uname().nodename)
    return Scribe(folder, start, say, find_launcher(task) if is_reader else None)


def _live(scribe: Scribe) -> Callable[[], None]:
    """Return what says, at most every LIVE_S seconds, how the run goes."""
    from stoker.report.live import Follower, render_status
    from stoker.watch.scribe import say

    follower = Follower(scribe.folder)
    said_at = time.monotonic()

    def tell() -> None:
        nonlocal said_at
        if time.monotonic() - said_at >= LIVE_S:
            said_at = time.monotonic()
            say(render_status(follower.read()))

    return tell


def _report(args: argparse.Namespace, folder: RunFolder) -> None:
    """Say what the run did: the report is talk, JSON is data."""
    from stoker.report.run import next_command, render_run
    from stoker.report.run_json import render_run_json
    from stoker.report.table import width
    from stoker.watch.scribe import talk
    from stoker.watch.summary import read_summary

    summary = read_summary(folder)
    if args.json:
        print(render_run_json(summary), flush=True)
        return
    talk(f"\n{render_run(summary, edge=width(2))}\n\nnext: {next_command(summary)}\n")
