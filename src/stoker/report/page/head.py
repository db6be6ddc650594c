"""The top of the page: which run, how it ended, what the data cannot tell, the verdict."""

from __future__ import annotations

import shlex
import time

from stoker.advise.verdict import (
    MIN_STEADY_STEPS,
    held_gpus,
    is_read_often,
    make_verdict,
    slowest_rank,
)
from stoker.report.accounting import Joined, job_facts
from stoker.report.machines import gpu_facts
from stoker.report.page.markup import Child, Html, code, pairs, section, tag
from stoker.report.run import command_of, ending, is_running, notes
from stoker.units import plural, render_seconds
from stoker.watch.series import known_number
from stoker.watch.summary import Summary

# A sign beside the word, for whoever does not see the colour.
SIGNS = {"ended": "✓", "running": "…", "failed": "✗", "killed": "✗", "lost": "?"}
MAX_COMMAND = 4000
MAX_NOTES = 8
MAX_HOSTS = 4


def title_of(summary: Summary) -> str:
    """Return the name of the run."""
    return str(summary.run.get("id") or summary.folder.name)


def render_head(summary: Summary, job: Joined | None = None) -> Html:
    """Return name, state, command and time of a run, and what Slurm says of its job."""
    state = summary.state if summary.run else "lost"
    command = shlex.join(command_of(summary.run))
    shown = command if len(command) <= MAX_COMMAND else command[: MAX_COMMAND - 1] + "…"
    return tag(
        "header",
        tag("p", "Stoker's report of a run", class_="kind"),
        tag("h1", title_of(summary)),
        tag("p", f"{SIGNS.get(state, '?')} {ending(summary)}", class_=f"state {state}"),
        pairs(
            [
                (
                    "command",
                    code(shown, can_copy=len(command) <= MAX_COMMAND) if shown else "unknown",
                ),
                ("time", _time(summary)),
                ("machines", _machines(summary)),
                ("steps", _steps(summary)),
                *job_facts(job, summary.wall_s),
            ]
        ),
    )


def render_verdict(summary: Summary) -> Html:
    """Return the sentence that says what limits the run."""
    return section("Verdict", tag("p", make_verdict(summary), class_="verdict"), id_="verdict")


def render_weakness(summary: Summary) -> Html | None:
    """Return what makes this page less sure than it looks; None where nothing does."""
    told = weaknesses(summary)
    if not told:
        return None
    more = f"and {plural(len(told) - MAX_NOTES, 'more note')}: stoker report --json"
    shown = told if len(told) <= MAX_NOTES else [*told[:MAX_NOTES], more]
    return tag(
        "aside",
        tag("h2", "Less sure than it looks", id="weak-title"),
        tag("ul", *(tag("li", each) for each in shown)),
        class_="weak",
        aria_labelledby="weak-title",
    )


def weaknesses(summary: Summary) -> list[str]:
    """Return a sentence for each reason to believe less of what the page shows."""
    told = []
    if is_running(summary):
        told.append("The run goes on: what is here is what it has done so far.")
    elif summary.state in ("failed", "killed", "lost"):
        told.append(f"The run {ending(summary)}: what it did not get to is not here.")
    rank = slowest_rank(summary)
    if rank is None or not rank.steps:
        told.append("No training step was recognised: there is no step split.")
    elif rank.steady is None or rank.steady.steps < MIN_STEADY_STEPS:
        count = rank.steady.steps if rank.steady else 0
        told.append(
            f"{plural(count, 'steady step')} after the warm-up; a verdict needs {MIN_STEADY_STEPS}."
        )
    elif held_gpus(summary) and not rank.steady.device_steps:
        told.append(
            "The steps were timed by the host's clock only: the GPU may have been busy "
            "while the host waited."
        )
    told += _missing(summary)
    return told + [f"{note[0].upper()}{note[1:]}." for note in notes(summary) if note]


def _missing(summary: Summary) -> list[str]:
    """What the machines have not told."""
    if not summary.machines:
        return ["No machine was read: there are no time lines."]
    told = []
    if not any(is_read_often(each, name) for each in summary.machines for name in each.stats):
        told.append("The machines were read fewer than five times: the means are rough.")
    read = {machine.host for machine in summary.machines}
    unread = sorted({rank.host for rank in summary.ranks if rank.host} - read)
    if summary.damaged:
        told.append(f"{plural(summary.damaged, 'line')} of the record could not be read.")
    if unread:
        told.append(f"{_some(unread)} {'was' if len(unread) == 1 else 'were'} not read.")
    return told


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:MAX_HOSTS])
    return shown if len(names) <= MAX_HOSTS else f"{shown} and {len(names) - MAX_HOSTS} more"


def _time(summary: Summary) -> Child:
    start = known_number(summary.run.get("start"))
    lasted = render_seconds(summary.wall_s)
    if start is None:
        return lasted
    try:
        moment = time.gmtime(start)
    except (OverflowError, OSError, ValueError):
        return lasted
    begun = tag(
        "time",
        time.strftime("%Y-%m-%d %H:%M:%S UTC", moment),
        datetime=time.strftime("%Y-%m-%dT%H:%M:%SZ", moment),
    )
    return tag("span", f"{lasted}, since ", begun)


def _machines(summary: Summary) -> str:
    hosts = [machine.host for machine in summary.machines] + [rank.host for rank in summary.ranks]
    names = list(dict.fromkeys(host for host in hosts if host))
    parts = [_some(names or [str(summary.run.get("host") or "unknown")])]
    cards: dict[str, int] = {}
    for machine in summary.machines:
        for gpu in gpu_facts(machine):
            name = str(gpu.get("name") or "GPU")
            cards[name] = cards.get(name, 0) + 1
    parts += [f"{count:,} × {name}" for name, count in list(cards.items())[:MAX_HOSTS]]
    if summary.machines and not cards:
        parts.append("no GPU")
    cores = [known_number(machine.facts.get("cores_allowed")) for machine in summary.machines]
    if cores and all(cores):
        parts.append(plural(sum(each or 0 for each in cores), "CPU core"))
    return ", ".join(parts)


def _steps(summary: Summary) -> str:
    steps = max((rank.steps for rank in summary.ranks), default=0)
    epochs = max((rank.epochs for rank in summary.ranks), default=0)
    parts = [plural(steps, "step") if steps else "none recognised"]
    if epochs:
        parts.append(plural(epochs, "epoch"))
    if len(summary.ranks) > 1:
        parts.append(summary.count_of(len(summary.ranks)))
    return ", ".join(parts)
