"""Time in which nobody trains: the start, validation, saving, and what stands between epochs."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from stoker.advise.finding import Finding, Gain, Rule
from stoker.advise.repeat import announce, seen_error
from stoker.advise.source import Source
from stoker.advise.stages import trained_until
from stoker.advise.trainers import VALIDATING
from stoker.advise.verdict import MIN_STEADY_STEPS, WORTH_SHARE, slowest_rank
from stoker.advise.wait import training_loader
from stoker.units import render_seconds, render_share
from stoker.watch.series import Row, known_number
from stoker.watch.summary import Line, Rank, Summary

# Importing a framework takes some seconds anywhere; only more than this is worth a sentence.
LONG_START_S = 20.0
# Imports take this long only from a file system that is slow with small files.
LONG_IMPORTS_S = 60.0
# A pass over held-out data after each epoch is good practice and takes about so much.
MUCH_VALIDATION = 0.25
# To how much of the run a fix should bring them.
VALIDATION_AIM, SAVING_AIM = 0.10, 0.05
# Who saves less of the run than this would not notice.
LEAST_SHARE = 0.05
# Rarer than this nobody would want them.
MOST_RARE = 10
# Of imports, what a faster disk saves at least: to run them takes its time from any disk.
IMPORTS_SAVED = 0.3
# Where several things could be meant, a line is named only if it is most of them.
MOSTLY = 0.5
# A picture or a table that is saved is no checkpoint.
SAVING = re.compile(r"\b\w*save(?!fig|txt|_image|_img)\w*\s*\(", re.IGNORECASE)
# Where the trainers of libraries have set how often they save.
SETTINGS = {
    "lightning": "every_n_train_steps or every_n_epochs of ModelCheckpoint",
    "pytorch_lightning": "every_n_train_steps or every_n_epochs of ModelCheckpoint",
    "transformers": "save_steps of TrainingArguments",
}
IMPORTING = re.compile(r"(import|from)\s")
LOOPING = re.compile(r"(async\s+)?(for|while|with)\s")


@dataclass(frozen=True)
class Pauses:
    """Where the time of the rank that the others wait for went besides its steps, in seconds."""

    rank: Rank
    wall_s: float
    startup_s: float
    # While there is training to come, and one pass after it: what is tested or predicted when all is
    # trained cannot be made rarer.
    validation_s: float
    validated: int
    # Between the last batch of one loader and the first of the next, while there is training to come.
    gap_s: float
    # Neither start-up nor step nor gap: what the program did after its last step.
    rest_s: float
    # Within steps, outside loading, model and optimizer.
    other_s: float
    texts: Mapping[Line, str]
    # The function of a library that saved, `save_checkpoint of lightning`, and how long; may be none.
    saver: str = ""
    saver_s: float = 0.0

    @property
    def blocked_s(self) -> float:
        """What saving, logging and the like may have taken since the first step."""
        return self.gap_s + self.other_s + self.rest_s

    @property
    def saving(self) -> list[Line]:
        """The lines that save, the slowest and innermost first."""
        lines = [line for line, text in self.texts.items() if SAVING.search(text)]
        most_s = max((line.total_s for line in lines), default=0.0)
        return sorted(lines, key=lambda line: (line.total_s < 0.9 * most_s, -line.own_s))

    @property
    def saving_s(self) -> float:
        """How long training waited for them; a thread that saves beside it does not count."""
        # One of them may call another, so that only their own time can be added up.
        own_s = sum(line.own_s for line in self.saving)
        seen = [own_s, self.saver_s, *(line.total_s for line in self.saving)]
        return min(max(seen), self.blocked_s)

    @property
    def saved_at(self) -> str:
        """The line that saves; a trainer of a library saves without one."""
        lines = self.saving
        has_line = bool(lines) and lines[0].total_s >= MOSTLY * self.saver_s
        return _place(lines[0]) if has_line else self.saver


@lru_cache(maxsize=1)  # four rules ask for it, one after the other
def read_pauses(summary: Summary) -> Pauses | None:
    """Return the pauses of a run that has taken enough steps to be judged by; None otherwise."""
    rank = slowest_rank(summary)
    if rank is None or rank.steady is None or rank.steady.steps < MIN_STEADY_STEPS:
        return None
    if summary.wall_s <= 0 or rank.startup_s is None or not rank.rows or summary.state == "running":
        return None
    splits = [each for each in (rank.steady, rank.first, rank.warmup, rank.evaluation) if each]
    rows = sorted(rank.rows, key=lambda row: row.start_s)
    trained = trained_until(rows)
    validation_s, validated = _validation(rank, rows[:trained], rows[trained:])
    gap_s = total_s(rows[:trained], "gap.step")
    known_s = rank.startup_s + gap_s + sum(split.step.mean * split.steps for split in splits)
    return Pauses(
        rank=rank,
        wall_s=summary.wall_s,
        startup_s=rank.startup_s,
        validation_s=validation_s,
        validated=validated,
        gap_s=gap_s,
        rest_s=max(0.0, rank.rows[-1].end_s - rank.rows[0].start_s - known_s),
        other_s=sum(split.phases.get("other", 0.0) * split.steps for split in splits),
        texts=_texts(rank.lines, known_number(summary.run.get("start"))),
        saver=_saver(rank)[0],
        saver_s=_saver(rank)[1],
    )


def _validation(rank: Rank, during: Sequence[Row], after: Sequence[Row]) -> tuple[float, int]:
    """Return for how long was validated, and how many batches, with one pass when all was trained."""
    during_s, after_s = total_s(during, "eval.step"), total_s(after, "eval.step")
    one_s = during_s / max(1, _passes(rank) - 1)
    share = min(1.0, one_s / after_s) if after_s > 0 else 0.0
    batches = _count(during, "eval.step") + share * _count(after, "eval.step")
    return during_s + share * after_s, round(batches)


def _count(rows: Sequence[Row], name: str) -> int:
    return sum(row.stats[name].count for row in rows if name in row.stats)


def total_s(rows: Sequence[Row], name: str) -> float:
    """Return the sum of all values of a measure."""
    stats = [row.stats[name] for row in rows if name in row.stats]
    return math.fsum(stat.mean * stat.count for stat in stats)


def long_start(summary: Summary) -> Finding | None:
    """The run spends much of its time before the first step."""
    pauses = read_pauses(summary)
    if pauses is None or pauses.startup_s < LONG_START_S:
        return None
    share = min(1.0, pauses.startup_s / pauses.wall_s)
    if share < WORTH_SHARE:
        return None
    line, line_s, is_import = _slow_start(pauses)
    is_problem = line is not None and (not is_import or pauses.startup_s >= LONG_IMPORTS_S)
    return Finding(
        key="long-start",
        level="problem" if is_problem else "advice",
        what=f"The first step comes after {render_seconds(pauses.startup_s)}, {render_share(share)} of the run.",
        why=_why_start(line, line_s, is_import),
        fix=_fix_start(line, is_import),
        confidence="low" if line is None else "medium" if is_import else "high",
        safety="A",
        gain=_start_gain(summary, pauses.startup_s, line_s, is_import),
        figures={"startup_s": pauses.startup_s, "line_s": line_s, "startup_share": share},
    )


def _start_gain(summary: Summary, startup_s: float, line_s: float, is_import: bool) -> Gain:
    """Return what the start gains without a line that was looked at now and then; 0 s: any part."""
    if not line_s:
        return announce(summary, 0.0, startup_s, startup_s)
    error = seen_error(line_s)
    least_s = line_s * (1 - error) * (IMPORTS_SAVED if is_import else 1.0)
    return announce(summary, least_s, min(startup_s, line_s * (1 + error)), startup_s)


def much_validation(summary: Summary) -> Finding | None:
    """Validation takes much of the run."""
    pauses = read_pauses(summary)
    if pauses is None:
        return None
    share = pauses.validation_s / pauses.wall_s
    if share < WORTH_SHARE:
        return None
    times = _rarer(share, VALIDATION_AIM)
    passes = _passes(pauses.rank)
    # A few passes cannot be divided evenly: one more of them is left out, or not.
    saved_s = most_s = pauses.validation_s * (1 - 1 / times)
    if passes:
        saved_s = pauses.validation_s * (1 - math.ceil(passes / times) / passes)
        most_s = pauses.validation_s * (1 - math.floor(passes / times) / passes)
    if saved_s < LEAST_SHARE * pauses.wall_s:
        return None
    return Finding(
        key="validation",
        level="problem" if share >= MUCH_VALIDATION else "advice",
        what=f"Validation takes {render_share(share)} of the run ({render_seconds(pauses.validation_s)}).",
        why=(
            f"{pauses.validated:,} batches were evaluated beside {pauses.rank.steps:,} steps of training"
            f"{f', in {passes} passes over held-out data' if passes else ''}."
        ),
        fix=(
            f"Validate one time in {times}, or on a part of the held-out data{_validating(pauses.rank)}; "
            "training itself stays the same, but early stopping sees fewer values."
        ),
        confidence="high",
        safety="C",
        gain=announce(summary, saved_s, most_s, pauses.validation_s),
        figures={"validation_s": pauses.validation_s, "validation_share": share, "rarer": times},
    )


def slow_saving(summary: Summary) -> Finding | None:
    """Training waits while checkpoints are written."""
    pauses = read_pauses(summary)
    if pauses is None or not pauses.saved_at:
        return None
    share = pauses.saving_s / pauses.wall_s
    if share < LEAST_SHARE:
        return None
    times = _rarer(share, SAVING_AIM)
    epochs = max(1, pauses.rank.epochs)
    # Saved once an epoch, a few saves cannot be divided evenly.
    kept = max(1 / times, math.ceil(epochs / times) / epochs if epochs > 1 else 0.0)
    error = seen_error(pauses.saving_s)
    if pauses.saving_s * (1 - kept) < LEAST_SHARE * pauses.wall_s:
        return None
    every = sum(1 for rank in summary.ranks if _saves(rank, pauses)) > 1
    return Finding(
        key="saving",
        level="problem" if share >= WORTH_SHARE else "advice",
        what=f"Training waits {render_share(share)} of the run while checkpoints are saved.",
        why=f"{pauses.saved_at} took {render_seconds(pauses.saving_s)} in all, and no step was taken meanwhile.",
        fix=(
            ("If every rank saves the same, let only rank 0 do it. " if every else "")
            + f"Save one time in {times}{_setting(pauses)}, or save from a copy in a background thread "
            "(torch.distributed.checkpoint.async_save)."
        ),
        confidence="high",
        safety="A",
        # Saved more rarely, and seen too often; or saved in the background, and seen too rarely.
        gain=announce(
            summary,
            pauses.saving_s * (1 - kept) * (1 - error),
            min(pauses.blocked_s, pauses.saving_s * (1 + error)),
            pauses.saving_s,
        ),
        figures={"saving_s": pauses.saving_s, "saving_share": share, "rarer": times},
    )


def between_epochs(summary: Summary) -> Finding | None:
    """Something else than saving stands between epochs."""
    pauses = read_pauses(summary)
    if pauses is None:
        return None
    gap_s = pauses.gap_s - pauses.saving_s
    line = _blocking(pauses)
    if gap_s < WORTH_SHARE * pauses.wall_s or line is None or line.own_s < MOSTLY * gap_s:
        return None
    # After the last epoch it stands in no gap, but takes its time. That is measured; the line was
    # only looked at now and then.
    whole_s = gap_s + pauses.rest_s
    line_s = min(line.own_s, whole_s)
    return Finding(
        key="between-epochs",
        level="problem" if line_s >= WORTH_SHARE * pauses.wall_s else "advice",
        what=f"Nothing is trained for {render_share(gap_s / pauses.wall_s)} of the run, between epochs.",
        why=f"{_place(line)} takes {render_seconds(line_s)} in all.",
        fix=f"Do what {_place(line)} does more rarely, in another process, or after the training.",
        confidence="medium",
        safety="A",
        gain=announce(summary, MOSTLY * line_s, whole_s, whole_s),
        figures={"gap_s": gap_s, "line_s": line_s},
    )


def _rarer(share: float, aim: float) -> int:
    """Return how much more rarely something must be done to be `aim` of the run."""
    beside, wanted = share / max(0.01, 1 - share), aim / (1 - aim)
    return min(MOST_RARE, max(2, math.ceil(beside / wanted)))


def _passes(rank: Rank) -> int:
    """Return how often held-out data was gone through, as far as loaders tell."""
    loaders = rank.facts.get("loaders")
    if not isinstance(loaders, dict):
        return 0
    told = [known_number(each.get("epochs")) for each in loaders.values() if isinstance(each, dict)]
    return max(0, int(sum(each or 0.0 for each in told)) - rank.epochs)


def _texts(lines: Sequence[Line], start: float | None) -> dict[Line, str]:
    """Return the text of the lines that no phase of a step explains, the slowest first."""
    source = Source(start)
    others = [line for line in lines if line.phase in ("other", None)]
    others.sort(key=lambda line: -line.own_s)
    return {line: source.line(line.file, line.line) or "" for line in others}


def _slow_start(pauses: Pauses) -> tuple[Line | None, float, bool]:
    """Return the line that the start-up waits for, its seconds, and whether it is an import."""
    imports = [line for line, text in pauses.texts.items() if IMPORTING.match(text)]
    imports_s = sum(line.own_s for line in imports)
    # Longer than all pauses since the first step, a line can only have run before it; but a
    # trainer's `fit` holds the steps too.
    early = [line for line, text in pauses.texts.items()
             if not IMPORTING.match(text) and line.own_s > pauses.blocked_s
             and line.total_s <= pauses.startup_s * (1 + seen_error(line.own_s))]  # fmt: skip
    line, line_s, is_import = None, 0.0, False
    if early and early[0].own_s > imports_s:
        line, line_s = early[0], early[0].own_s
    elif imports:
        line, line_s, is_import = imports[0], imports_s, True
    line_s = min(line_s, pauses.startup_s)
    return (line, line_s, is_import) if line_s >= MOSTLY * pauses.startup_s else (None, 0.0, False)


def _why_start(line: Line | None, line_s: float, is_import: bool) -> str:
    if line is None:
        return (
            "Imports, data sets and models come before it; no single line takes most of the time."
        )
    if is_import:
        return f"Imports take {render_seconds(line_s)} of it, the most at {_place(line)}."
    return f"{_place(line)} takes {render_seconds(line_s)} of it."


def _fix_start(line: Line | None, is_import: bool) -> str:
    if line is None:
        return "Keep what is prepared in a file and load it in later runs; see the slowest lines."
    if is_import:
        return "Put the environment on a fast disk: in a container image, or copied to the node's own disk."
    return f"Do the work of {_place(line)} once, keep its result in a file, and load that in later runs."


def _validating(rank: Rank) -> str:
    """Return where that is set, if a trainer of a library evaluates."""
    told = VALIDATING.get(str(training_loader(rank).get("trainer")))
    return f" ({told})" if told else ""


def _saver(rank: Rank) -> tuple[str, float]:
    """Return the function of a library that saved, and how long; nothing where none was seen."""
    saving = rank.facts.get("saving")
    told: Mapping[str, object] = saving if isinstance(saving, dict) else {}
    seconds = known_number(told.get("seconds"))
    if not seconds or seconds < 0:
        return "", 0.0
    return f"{told.get('function')} of {told.get('library')}", seconds


def _setting(pauses: Pauses) -> str:
    """Return where that is set, if a library of which we know it saves."""
    library = pauses.saver.rpartition(" ")[2] if pauses.saved_at == pauses.saver else ""
    return f" ({SETTINGS[library]})" if library in SETTINGS else ""


def _saves(rank: Rank, pauses: Pauses) -> bool:
    """Say whether a rank spends about as much on saving."""
    if pauses.saved_at == pauses.saver:
        return _saver(rank)[1] >= MOSTLY * pauses.saver_s
    places = {(line.file, line.line) for line in pauses.saving}
    theirs_s = sum(line.total_s for line in rank.lines if (line.file, line.line) in places)
    return theirs_s >= MOSTLY * sum(line.total_s for line in pauses.saving)


def _blocking(pauses: Pauses) -> Line | None:
    """Return the slowest line that can stand between epochs."""
    for line, text in pauses.texts.items():
        if not text or SAVING.search(text) or IMPORTING.match(text) or LOOPING.match(text):
            continue
        if line.own_s <= pauses.blocked_s * (1 + seen_error(line.own_s)):
            return line
    return None


def _place(line: Line) -> str:
    return f"{line.file.rpartition('/')[2]}:{line.line}"


RULES: tuple[Rule, ...] = (long_start, much_validation, slow_saving, between_epochs)
