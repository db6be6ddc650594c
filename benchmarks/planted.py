"""Is the advice right? Causes are planted; is each found first, and is its gain as announced?

    .venv/bin/python benchmarks/planted.py
    .venv/bin/python benchmarks/planted.py --gains --turns 3
    PYTHONPATH=src python3 benchmarks/planted.py --device cuda --python python3 --budget-s 470

Each training of tests/planted_causes.py runs under `stoker run` with its cause, and again with what
the finding tells to do about it; so do those of tests/planted_variants.py, by which no rule was
made. The gain that was measured is of the whole run, with what the mending changes taken from the
second run: the steps, all but the start, or the start. Imports and Python's own end take what a busy
machine makes of them and count as they were. A gain counts as right in the announced range, without
tolerance. Where others on the machine had cores of it meanwhile, that is written down.

Runs are added to the JSON file, and none is taken out: the page counts all that were made with the
same rules. What is written by hand on the page stays.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from figures import render_table
from machine import HERE, SRC, Budget, describe_machine, render_machine, stoker_environment

sys.path.insert(0, str(HERE.parent / "tests"))
from planted_causes import Cause, is_right, on, others, run_cause, serious
from planted_variants import VARIANTS
from stoker.advise.rules import pauses
from stoker.watch.summary import Split, Summary

# One run: up to 30 s of training, and a framework's start on a cold disk.
RUN_S = 45.0
# Between these the page is ours.
BEGIN, END = "<!-- written by planted.py: begin -->", "<!-- written by planted.py: end -->"
TITLES = {"cpu": "# Is the advice right? On a CPU", "cuda": "# Is the advice right? On a GPU"}


@dataclass(frozen=True)
class Outcome:
    """What came of one cause, once."""

    cause: str
    wanted: str | None
    found: list[str]
    is_found: bool
    low: float | None = None
    high: float | None = None
    ceiling: float | None = None
    expected: float | None = None
    measured: float | None = None
    is_in_range: bool | None = None
    # What is found once it is mended.
    then: list[str] | None = None
    others_cores: float = 0.0


def main() -> None:
    args = parse_arguments()
    budget = Budget(args.budget_s)
    causes = {**on(args.device), **(VARIANTS if args.device == "cpu" else {})}
    if args.gains:
        causes = {name: cause for name, cause in causes.items() if cause.mended is not None}
    wanted = args.only.split(",") if args.only else list(causes)
    programs = None if args.python is None else Path(shutil.which(args.python) or "").parent
    outcomes, left_out = [], []
    for turn in range(args.turns):
        for name in wanted:
            runs = 1 if causes[name].mended is None else 2
            if not budget.has(runs * RUN_S):
                left_out.append(name)
                continue
            with tempfile.TemporaryDirectory() as folder:
                place = Path(folder) if args.keep is None else args.keep / f"{turn + 1} {name}"
                outcome = try_cause(name, causes[name], place.absolute(), programs)
            print(turn + 1, " | ".join(cells([outcome])), flush=True)
            outcomes.append(outcome)
    python = args.python or str(HERE.parent / ".venv-torch/bin/python")
    run = {
        "machine": describe_machine(python, ("torch", "tensorflow"), stoker_environment()),
        "rules": rules_version(),
        "outcomes": [asdict(each) for each in outcomes],
        "left_out": left_out,
    }
    output = args.output or HERE / f"planted{'' if args.device == 'cpu' else '-cuda'}.json"
    write(output, run, args.device)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--python", help="an interpreter with the framework (default: .venv-torch)")
    parser.add_argument("--only", help="causes, with commas between them")
    parser.add_argument("--gains", action="store_true", help="only causes whose gain is measured")
    parser.add_argument("--turns", type=int, default=1, help="how often each is tried (default 1)")
    parser.add_argument("--budget-s", type=float, help="begin nothing that would take longer")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="where the run folders stay")
    parser.add_argument("-o", "--output", type=Path)
    return parser.parse_args()


def rules_version() -> str:
    """Return a short sum of everything that an announced gain is made of."""
    whole = hashlib.sha256()
    for path in sorted((SRC / "stoker/advise").rglob("*.py")):
        whole.update(path.read_bytes())
    return whole.hexdigest()[:8]


def write(path: Path, run: Mapping[str, Any], device: str) -> None:
    """Add a run to the file, and write the page's own part anew."""
    runs = [*(json.loads(path.read_text())["runs"] if path.exists() else []), run]
    path.write_text(json.dumps({"runs": runs}, indent=1) + "\n")
    page = path.with_suffix(".md")
    before = page.read_text() if page.exists() else f"{TITLES[device]}\n\n{BEGIN}\n{END}\n"
    above, _, rest = before.partition(BEGIN)
    text = f"{above}{BEGIN}\n\n{render_runs(runs)}\n{END}{rest.partition(END)[2]}"
    page.write_text(text)
    print(text)
    print(f"wrote {path} and {page}")


def try_cause(name: str, cause: Cause, folder: Path, programs: Path | None) -> Outcome:
    """Run a cause, mend it as the finding says, and run it again."""
    before = run_cause(cause, folder / "planted", cause.words, cause.environ, programs)
    findings = serious(before)
    outcome = Outcome(
        cause=name,
        wanted=cause.key,
        found=[f"{each.level}: {each.key}" for each in findings],
        is_found=is_right(cause, before),
        others_cores=others(before),
    )
    if not findings or not outcome.is_found or cause.mended is None:
        return outcome
    gain = findings[0].gain
    words = tuple(word.format(**findings[0].figures) for word in cause.mended)
    environ = {**cause.environ, **cause.mended_environ}
    after = run_cause(cause, folder / "mended", words, environ, programs)
    assert gain is not None
    measured = measure(cause, before, after)
    return Outcome(
        **{
            **asdict(outcome),
            **asdict(gain),
            "measured": measured,
            "is_in_range": gain.low <= measured <= gain.high,
            "then": [each.key for each in serious(after)],
            "others_cores": max(others(before), others(after)),
        }
    )


def measure(cause: Cause, before: Summary, after: Summary) -> float:
    """Return the gain of the whole run, had the part that was mended been that of the other run."""
    if cause.changes == "steps":
        # For as many steps as before: some trainings go on for a time, not for a number of steps.
        slow, fast = steady(before), steady(after)
        saved_s = slow.steps * (slow.step.mean - fast.step.mean / cause.samples)
    else:
        saved_s = part_s(cause, before) - part_s(cause, after)
    return before.wall_s / (before.wall_s - saved_s)


def steady(summary: Summary) -> Split:
    """Return the steady steps of the rank that takes longest."""
    found = [each.steady for each in summary.ranks if each.steady]
    return max(found, key=lambda split: split.steps * split.step.mean)


def part_s(cause: Cause, summary: Summary) -> float:
    """Return the seconds of the part that the mending changes."""
    rank = summary.ranks[0]
    if cause.changes == "start":
        found = pauses.read_pauses(summary)
        assert found is not None
        imports = [line for line, text in found.texts.items() if pauses.IMPORTING.match(text)]
        return found.startup_s - sum(line.own_s for line in imports)
    assert rank.startup_s is not None
    # Until the program's last line: what Python takes to end itself is not the training's.
    return rank.rows[-1].end_s - rank.rows[0].start_s - rank.startup_s


def cells(outcomes: Sequence[Outcome]) -> list[str]:
    """Return the row of one cause, tried once or several times."""
    first = outcomes[0]
    judged = [each for each in outcomes if each.is_in_range is not None]
    found = sum(each.is_found for each in outcomes)
    missed = next((each for each in outcomes if not each.is_found), None)
    told = first.found[0] if first.found else "nothing"
    if missed is not None:
        instead = missed.found[0] if missed.found else "nothing"
        told = f"**{instead}**, not {first.wanted or 'nothing'}"
    row = [first.cause, told if len(outcomes) == 1 else f"{told} ({found} of {len(outcomes)})"]
    if not judged:
        return [*row, "–", "–", "–", "–", "–", f"{_middle(outcomes, 'others_cores'):.1f}"]
    held = sum(bool(each.is_in_range) for each in judged)
    low, high, ceiling = (_middle(judged, name) for name in ("low", "high", "ceiling"))
    then = {key for each in judged for key in each.then or ()}
    return [
        *row,
        f"{low:.2f} to {high:.2f} (at most {ceiling:.2f})",
        f"{_middle(judged, 'expected'):.2f}",
        f"{_middle(judged, 'measured'):.2f}",
        "yes" if held == len(judged) else f"**{held} of {len(judged)}**",
        ", ".join(sorted(then)) or "nothing",
        f"{_middle(outcomes, 'others_cores'):.1f}",
    ]


def _middle(outcomes: Sequence[Outcome], name: str) -> float:
    values: list[float] = [getattr(each, name) for each in outcomes]
    return statistics.median(values)


def render_runs(runs: Sequence[Mapping[str, Any]]) -> str:
    """Return the last run in full, and what all of them came to."""
    last = runs[-1]
    outcomes = read_outcomes(last)
    planted = [each for each in outcomes if each.cause not in VARIANTS]
    variants = [each for each in outcomes if each.cause in VARIANTS]
    missing = (
        f"\nLeft out for want of time: {', '.join(last['left_out'])}.\n" if last["left_out"] else ""
    )
    return "\n".join(
        [
            f"{render_machine(last['machine'])}\n{missing}",
            render_causes("The planted causes", planted),
            render_causes("Variants, by which no rule was made", variants),
            render_history(runs),
        ]
    )


def read_outcomes(run: Mapping[str, Any]) -> list[Outcome]:
    """Return the outcomes of a run in the file."""
    return [Outcome(**each) for each in run["outcomes"]]


def render_causes(title: str, outcomes: Sequence[Outcome]) -> str:
    """Return a table with one row a cause; where it was tried several times, with medians."""
    if not outcomes:
        return ""
    head = ("cause", "first finding", "announced gain", "expected", "measured", "in range",
            "then found", "others' cores")  # fmt: skip
    names = dict.fromkeys(each.cause for each in outcomes)
    rows = [cells([each for each in outcomes if each.cause == name]) for name in names]
    return f"## {title}\n\n{_sentence(outcomes)}\n\n{render_table(head, rows)}"


def _sentence(outcomes: Sequence[Outcome]) -> str:
    first, healthy, held, _ = counts(outcomes)
    silent = "" if healthy == "0 of 0" else f" {healthy} healthy runs were told nothing;"
    return (
        f"The cause came first in {first} runs;{silent} {held} gains were in the announced range."
    )


def render_history(runs: Sequence[Mapping[str, Any]]) -> str:
    """Return a table of all runs, with the sum of those that were made with today's rules."""
    head = ("run", "rules", "cause first", "healthy told nothing", "gains in range", "missed")
    rows = []
    for number, run in enumerate(runs, 1):
        when = f"{number}, {run['machine']['date']}, {run['machine']['stoker']}"
        rows.append([when, run["rules"], *counts(read_outcomes(run))])
    same = [run for run in runs if run["rules"] == runs[-1]["rules"]]
    together = [each for run in same for each in read_outcomes(run)]
    rows.append(["with these rules", runs[-1]["rules"], *counts(together)])
    return f"## All runs\n\n{render_table(head, rows)}"


def counts(outcomes: Sequence[Outcome]) -> list[str]:
    """Return how often what should hold held, and which gains were missed."""
    planted = [each for each in outcomes if each.wanted is not None]
    healthy = [each for each in outcomes if each.wanted is None]
    judged = [each for each in outcomes if each.is_in_range is not None]
    missed = [
        f"{each.cause} {each.measured:.2f} ({each.low:.2f} to {each.high:.2f})"
        for each in judged
        if not each.is_in_range
    ]
    return [
        f"{sum(each.is_found for each in planted)} of {len(planted)}",
        f"{sum(each.is_found for each in healthy)} of {len(healthy)}",
        f"{sum(bool(each.is_in_range) for each in judged)} of {len(judged)}",
        ", ".join(missed) or "none",
    ]


if __name__ == "__main__":
    main()
