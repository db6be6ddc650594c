"""`stoker pack`: many small files into a few large ones."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

from stoker.commands.parser import Parser, add_json, typed
from stoker.data.formats import FORMATS, parse_format
from stoker.data.packing.journal import parse_share
from stoker.data.packing.order import (
    DEFAULT_SHARD_BYTES,
    Order,
    Progress,
    Settings,
    parse_shard_bytes,
)
from stoker.data.packing.pack import Packed, join, pack_order, pack_share
from stoker.data.sources.source import Hints
from stoker.errors import UsageError
from stoker.plan.quote import quote
from stoker.units import (
    parse_count,
    parse_name,
    parse_positive,
    parse_time,
    plural,
)

DESCRIPTION = """\
Pack many small files into a few large ones (shards) that any tool reads, with an index. The
source is a folder, a list of files (.txt, or - for stdin), a table with paths and labels (.csv),
an array (.npy, .npz, idx), an archive, or a data set that is packed already. Interrupted, the
same command goes on where it was.

  stoker pack images/ packed/
  stoker pack train.csv packed/ --shuffle 1
  stoker pack train-images-idx3-ubyte.gz mnist/
  stoker pack images/ packed/ --format tfrecord --shard-size 256M
  stoker pack /scratch/images /scratch/packed --slurm 16
"""
# Progress is told so often: on a terminal, and in a log.
TERMINAL_S, LOG_S = 0.2, 30.0
# More threads than this only wait for one another.
MAX_WORKERS = 4


def run(words: list[str]) -> int:
    """Pack a source."""
    args = _parser().parse_args(words)
    if args.join:
        return _join(args)
    if args.out is None:
        raise UsageError(
            "missing: OUT", why="packing needs a folder to pack to", fix="stoker pack SRC OUT"
        )
    if args.slurm is not None:
        return _submit(args)
    teller = _Teller()
    order = _order(args)._replace(tell=teller.tell)
    try:
        packed = pack_share(order, args.share) if args.share else pack_order(order)
    finally:
        teller.end()
    _print(args, args.out, packed)
    if args.share:
        join_them = f"stoker pack {quote(str(args.out))} --join"
        print(f"next: {join_them}, once all shares are packed", file=sys.stderr)
    else:
        print(f"next: stoker verify {quote(str(args.out))}", file=sys.stderr)
    return 0


def _parser() -> Parser:
    parser = Parser("pack", DESCRIPTION)
    parser.add_argument("source", metavar="SRC", type=Path, help="what to pack")
    parser.add_argument(
        "out", metavar="OUT", type=Path, nargs="?", help="the folder that it goes to"
    )
    parser.add_argument(
        "--format", type=typed(parse_format), default="tar", metavar="F",
        help=f"{', '.join(FORMATS)} (default tar)",
    )  # fmt: skip
    parser.add_argument(
        "--shard-size", type=typed(parse_shard_bytes), default=DEFAULT_SHARD_BYTES, metavar="SIZE",
        help="how large a shard may be (default 1G)",
    )  # fmt: skip
    parser.add_argument(
        "--workers", type=typed(parse_positive), metavar="N", help="threads that read ahead"
    )
    parser.add_argument(
        "--shuffle", type=typed(parse_count), metavar="SEED", help="shuffle the samples"
    )
    add_json(parser)
    _add_hints(parser.add_argument_group("the source"))
    _add_jobs(parser.add_argument_group("on Slurm"))
    return parser


def _add_hints(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--labels", type=Path, metavar="FILE", help="labels of an array: npy or idx")
    group.add_argument("--array", metavar="NAME", help="which array of a npz file has the samples")
    group.add_argument("--path-column", metavar="NAME", help="the column of a table with the paths")
    group.add_argument(
        "--label-column", metavar="NAME", help="the column of a table with the labels"
    )


def _add_jobs(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--slurm", type=typed(parse_positive), metavar="N", help="pack as an array of N jobs"
    )
    group.add_argument(
        "--share", type=typed(parse_share), metavar="K/N", help="pack one of N shares only"
    )
    group.add_argument("--join", action="store_true", help="make a data set of all shares of SRC")
    group.add_argument("--cluster", type=typed(parse_name), metavar="NAME", help="the cluster")
    group.add_argument("--account", type=typed(parse_name), metavar="NAME", help="whom to bill")
    group.add_argument("--partition", type=typed(parse_name), metavar="NAME", help="partition")
    group.add_argument(
        "--time", type=typed(parse_time), metavar="T", help="time limit of each job (default 12h)"
    )
    group.add_argument("--sbatch", action="append", default=[], metavar="OPTION",
                       help="another option of sbatch: --sbatch=--qos=low")  # fmt: skip


def _order(args: argparse.Namespace) -> Order:
    settings = Settings(args.format, args.shard_size, args.shuffle)
    hints = Hints(args.labels, args.array, args.path_column, args.label_column)
    workers = args.workers or min(MAX_WORKERS, len(os.sched_getaffinity(0)))
    return Order(args.source, args.out, settings, hints, workers)


def _join(args: argparse.Namespace) -> int:
    packed = join(args.source)
    _print(args, args.source, packed._replace(kept_shards=0))
    print(f"next: stoker verify {quote(str(args.source))}", file=sys.stderr)
    return 0


def _submit(args: argparse.Namespace) -> int:
    # Most people pack where they are: what only this needs is not imported for them.
    from stoker.commands.arguments import read_layers
    from stoker.data.packing.array_job import Job, find_cluster, submit_shares, with_defaults

    layers = read_layers()
    job = Job(args.account, args.partition, args.time, tuple(args.sbatch))
    cluster = find_cluster(args.cluster, layers)
    given = {
        "--format": args.format, "--shard-size": f"{args.shard_size / 1024:.10f}K", "--shuffle": args.shuffle,
        "--workers": args.workers, "--labels": args.labels and args.labels.resolve(),
        "--array": args.array, "--path-column": args.path_column,
        "--label-column": args.label_column,
    }  # fmt: skip
    words = [f"{option}={value}" for option, value in given.items() if value is not None]
    jobs = submit_shares(_order(args), words, args.slurm, with_defaults(job, layers), cluster)
    if args.json:
        print(json.dumps({"format": 1, "out": str(args.out), **jobs._asdict()}, indent=2))
    else:
        print(jobs.array, jobs.join)
    sys.stdout.flush()
    shares = plural(args.slurm, "share")
    print(f"submitted {jobs.array}: {shares}; {jobs.join} joins them", file=sys.stderr)
    verify = f"stoker verify {quote(str(args.out))}"
    print(f"next: stoker jobs; when they are done, {verify}", file=sys.stderr)
    return 0


def _print(args: argparse.Namespace, out: Path, packed: Packed) -> None:
    if args.json:
        print(json.dumps({"format": 1, "out": str(out), **packed._asdict()}, indent=2))
    else:
        print(
            f"packed {plural(packed.samples, 'sample')} into {plural(packed.shards, 'shard')} "
            f"({plural(packed.bytes, 'byte')})"
        )
    sys.stdout.flush()
    if packed.kept_shards:
        kept = plural(packed.kept_shards, "shard")
        print(f"note: {kept} of an earlier run kept", file=sys.stderr)
    if packed.skipped:
        left = plural(packed.skipped, "entry", "entries")
        print(f"note: {left} left out: hidden files, devices or pipes", file=sys.stderr)


class _Teller:
    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._last = time.monotonic()
        self._has_told = False

    def tell(self, now: Progress) -> None:
        wait = TERMINAL_S if self._is_terminal else LOG_S
        if time.monotonic() - self._last < wait:
            return
        self._last, self._has_told = time.monotonic(), True
        text = f"{plural(now.samples, 'sample')}, {now.bytes / 1e9:.2f} GB, {plural(now.shards, 'shard')}"
        end = "" if self._is_terminal else "\n"
        print(f"\r{text}" if self._is_terminal else text, end=end, file=sys.stderr, flush=True)

    def end(self) -> None:
        if self._is_terminal and self._has_told:
            print(file=sys.stderr)
