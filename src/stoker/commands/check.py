"""`stoker check`: find what is wrong with a batch script."""

from __future__ import annotations

import json
import os
import shlex
import sys
from dataclasses import replace
from pathlib import Path

from stoker.check.lint import Settings, check_script, fix_script, parse_version, render_diff
from stoker.cluster.layers import defaults
from stoker.cluster.load import load_cluster, names
from stoker.cluster.profile import Cluster
from stoker.commands.arguments import add_set, load_overridden, read_layers
from stoker.commands.parser import Parser, add_json
from stoker.errors import ScriptError, UsageError
from stoker.report.check import checked_json, render_checked, render_summary

DESCRIPTION = """\
Check a batch script: directives, launchers, rendezvous, signals, environment, and, if the
cluster is known, its limits. Exit code 1 if an error is found; warnings and advice give 0.

  stoker check job.sh
  stoker check job.sh --cluster lumi
  stoker check job.sh --fix | patch job.sh
"""


# Far above what sbatch takes; what lies beyond is not looked at.
MAX_READ_BYTES = 64 * 2**20


def run(words: list[str]) -> int:
    """Check one script."""
    parser = Parser("check", DESCRIPTION)
    parser.add_argument("file", help="the batch script; - for standard input")
    parser.add_argument("--cluster", metavar="NAME", help="the cluster; `none` for no guess")
    parser.add_argument("--slurm-version", metavar="V", help="the site's Slurm, e.g. 23.02")
    parser.add_argument("--fix", action="store_true", help="print the mechanical fixes as a diff")
    add_json(parser)
    add_set(parser)
    args = parser.parse_args(words)
    version = parse_version(args.slurm_version)
    if args.slurm_version and version is None:
        raise UsageError(
            f"`{args.slurm_version}` is not a Slurm version",
            why="a version is two or three numbers",
            fix="--slurm-version 23.02 (see `sbatch --version`)",
        )
    text, folder = _read(args.file)
    cluster, others = _clusters(args.cluster, args.set)
    settings = Settings(cluster, others, version, folder, frozenset(os.environ))
    checked = check_script(text, settings)
    if checked.cluster is None and args.cluster is None:
        settings = replace(settings, cluster=_default_cluster())
        checked = check_script(text, settings)
    name = Path(args.file).name if args.fix else args.file
    if args.fix:
        sys.stdout.buffer.write(
            render_diff(text, fix_script(text, settings), name).encode("utf-8", "surrogateescape")
        )
    elif args.json:
        print(json.dumps(checked_json(checked, args.file), indent=2))
    elif checked.findings:
        sys.stdout.buffer.write(
            (render_checked(checked, args.file) + "\n").encode("utf-8", "backslashreplace")
        )
    sys.stdout.flush()
    print(render_summary(checked, args.file), file=sys.stderr)
    if any(each.edits for each in checked.findings) and not args.fix and args.file != "-":
        again = shlex.join(["stoker", "check", *words])
        print(f"next: {again} --fix | patch {shlex.quote(args.file)}", file=sys.stderr)
    elif not checked.has_errors and args.file != "-":
        print(f"next: sbatch {shlex.quote(args.file)}", file=sys.stderr)
    return 1 if checked.has_errors else 0


def _read(file: str) -> tuple[str, Path | None]:
    """Return the script's text, bytes that are not UTF-8 kept, and the folder it is seen from."""
    if file == "-":
        return sys.stdin.buffer.read().decode("utf-8", "surrogateescape"), None
    path = Path(file)
    try:
        if path.exists() and not path.is_file():
            raise ScriptError(
                f"`{file}` is not a file", why="it is a folder or a device", fix="name the script"
            )
        with path.open("rb") as stream:
            data = stream.read(MAX_READ_BYTES)
    except OSError as error:
        raise ScriptError(
            f"cannot read `{file}`", why=error.strerror or str(error), fix="check the path"
        ) from None
    return data.decode("utf-8", "surrogateescape"), path.resolve().parent


def _clusters(name: str | None, overrides: list[str]) -> tuple[Cluster | None, tuple[Cluster, ...]]:
    """Return the named cluster, or all that one may be guessed from."""
    layers = read_layers()
    if name == "none":
        return None, ()
    if overrides and name is None:
        raise UsageError(
            "--set needs --cluster",
            why="it overrides a fact of one cluster, and none was named",
            fix="--cluster NAME --set …",
        )
    if name is not None:
        return load_overridden(name, overrides, layers), ()
    return None, tuple(load_cluster(each, layers) for each in names(layers))


def _default_cluster() -> Cluster | None:
    """Return the cluster of the user's or project's file, for scripts that point at none."""
    layers = read_layers()
    name = defaults(layers).get("cluster")
    return load_cluster(str(name), layers) if name else None
