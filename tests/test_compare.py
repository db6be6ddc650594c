"""Two runs side by side: what differs, whether it is more than noise, and an answer for a script."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from conftest import Stoker
from stoker.advise.comparison import Comparison, Figure, compare
from stoker.advise.noise import BETWEEN_RUNS, Estimate, difference, estimate
from stoker.report.comparison import comparison_json, render_comparison
from stoker.watch.folder import RunFolder
from stoker.watch.series import Row, SeriesWriter, Stat
from stoker.watch.summary import read_summary

START = 1_794_700_000.0


def make_run(
    path: Path,
    steps_ms: Sequence[float],
    *,
    ranks: int = 1,
    count: int = 10,
    phases: Mapping[str, float] | None = None,
    batch_size: int | None = 32,
    command: Sequence[str] = ("python", "train.py"),
    readings: Mapping[str, float] | None = None,
    **facts: Any,
) -> Path:
    """A run with one row a second, the mean of its steps as given, in `count` steps each."""
    folder = RunFolder(path)
    folder.make()
    told = {"id": path.name, "command": list(command), "start": START, "end": START + 90, "exit": 0}
    folder.write(folder.run_json, told)
    shares = phases or {"data": 0.25, "forward": 0.75}
    for rank in range(ranks):
        label = f"{rank}-n1"
        writer = SeriesWriter(folder.steps(label), {"kind": "steps", "host": "n1"})
        for second, ms in enumerate(steps_ms):
            means = {"step": ms / 1000, **{name: part * ms / 1000 for name, part in shares.items()}}
            stats = {f"steady.{name}": Stat(count, mean, 0.0, mean) for name, mean in means.items()}
            writer.append(Row(second, second + 1, stats))
        writer.close()
        steps = count * len(steps_ms)
        loader = {"batch_size": batch_size, "num_workers": 0, "batches": steps, "epochs": 1}
        known = {"loaders": {"any": loader}, **facts} if batch_size else facts
        folder.write(
            folder.facts(label),
            {"label": label, "rank": rank, "host": "n1", "steps": steps, "facts": known},
        )
    samples = SeriesWriter(folder.samples("n1"), {"kind": "samples", "host": "n1"})
    for second in range(len(steps_ms)):
        stats = {name: Stat(1, each, 0.0, each) for name, each in (readings or {}).items()}
        samples.append(Row(second, second + 1, stats))
    samples.close()
    return path


def swinging(mean: float, seed: int, number: int = 60, likeness: float = 0.5) -> list[float]:
    """Steps that swing by a tenth, each second somewhat like the one before."""
    draw = random.Random(seed)
    off, values = 0.0, []
    for _ in range(number):
        off = likeness * off + draw.gauss(0, 0.1)
        values.append(mean * (1 + off))
    return values


def compared(a: Path, b: Path) -> Comparison:
    return compare(read_summary(RunFolder(a)), read_summary(RunFolder(b)))


def figure(comparison: Comparison, key: str) -> Figure:
    (found,) = [each for each in comparison.figures if each.key == key]
    return found


# -- noise -----------------------------------------------------------------------------------


def test_runs_that_are_alike_are_rarely_called_different() -> None:
    told = 0
    for seed in range(200):
        pairs = [[(10.0, ms) for ms in swinging(50, seed + far)] for far in (0, 10_000)]
        a, b = (estimate(each) for each in pairs)
        assert a is not None
        assert b is not None
        low, high = difference(a, b)
        told += not low <= 0 <= high
    assert told <= 0.07 * 200


def test_a_change_well_beyond_the_noise_is_found() -> None:
    found = 0
    for seed in range(100):
        a = estimate([(10.0, ms) for ms in swinging(50, seed)])
        b = estimate([(10.0, ms) for ms in swinging(60, seed + 10_000)])
        assert a is not None
        assert b is not None
        found += difference(a, b)[0] > 0
    assert found >= 90


def test_values_that_swing_slowly_widen_the_interval() -> None:
    quick = estimate([(1.0, 50 + (-1) ** second) for second in range(60)])
    slow = estimate([(1.0, 50 + (-1) ** (second // 15)) for second in range(60)])
    assert quick is not None
    assert slow is not None
    assert slow.error > 3 * quick.error


def test_nothing_falls_by_more_than_all_of_itself(tmp_path: Path) -> None:
    wild = [1.0] * 30 + [900.0] * 6
    a, b = (make_run(tmp_path / name, ms) for name, ms in (("a", wild), ("b", [20.0] * 20)))
    text = render_comparison(compare(*(read_summary(RunFolder(each)) for each in (a, b))))
    lows = [float(each) for each in re.findall(r"(-[0-9.]+) % to ", text)]
    assert -100.0 in lows
    assert min(lows) >= -100


def test_a_run_that_is_faster_than_the_other_ever_was_is_faster() -> None:
    """As where two processes crowd the cores, at times less than at others."""
    a = estimate([(8, 121)] * 5 + [(3, 330)] * 8 + [(19, 52)] * 8 + [(3, 327)] * 231)
    b = estimate([(66, 15)] * 14)
    assert a is not None
    assert b is not None
    for one, other in ((a, b), (b, a)):
        low, high = difference(one, other)
        assert low * high > 0
        assert low > -one.value


def test_what_all_but_goes_away_is_lower() -> None:
    low, high = difference(Estimate(10.0, 1.0, 10), Estimate(0.001, 0.003, 10))
    assert -13 < low < -10 < high < -7


def test_a_mean_counts_every_step_once() -> None:
    many = estimate([(10.0, 10.0)] * 10 + [(1.0, 20.0)] * 100)
    assert many is not None
    assert many.value == pytest.approx(15)
    # One row that has half of all steps is one block, and its noise is anybody's guess.
    one = estimate([(100.0, 10.0), *[(1.0, 20.0)] * 100])
    assert one is not None
    assert one.value == pytest.approx(15)
    assert one.error > 5


def test_two_runs_without_any_swing_are_still_only_two_runs() -> None:
    low, high = difference(Estimate(1.0, 0.0, 10), Estimate(1 + BETWEEN_RUNS, 0.0, 10))
    assert low < 0 < high


# -- what is said -----------------------------------------------------------------------------


def test_a_slower_run_is_called_slower_with_the_range(tmp_path: Path) -> None:
    a = make_run(tmp_path / "a", swinging(50, 1))
    # Twice the step, and all that was added is waiting for data.
    b = make_run(tmp_path / "b", swinging(100, 1), phases={"data": 0.625, "forward": 0.375})
    comparison = compared(a, b)
    assert comparison.verdict.startswith("B is 2.00× slower: a step takes ")
    assert [figure(comparison, key).judgement for key in ("step", "data", "samples")] == [
        "higher", "higher", "lower",
    ]  # fmt: skip
    assert figure(comparison, "forward").judgement == "within noise"
    assert figure(comparison, "whole time").judgement == "not judged"


def test_a_run_and_itself_are_the_same(tmp_path: Path) -> None:
    a = make_run(tmp_path / "a", swinging(50, 1), readings={"cpu.cores": 2.0, "gpu.0.duty_pct": 60})
    comparison = compared(a, a)
    assert comparison.verdict.startswith("No difference beyond noise")
    assert comparison.settings == ()
    judged = {each.judgement for each in comparison.figures}
    assert judged == {"within noise", "not judged"}
    assert figure(comparison, "GPU load").a == pytest.approx(60)


@pytest.mark.parametrize(
    ("steps", "count", "why"),
    [(60, 0, "0 steady steps"), (3, 5, "15 steady steps"), (4, 30, "5 seconds of steps")],
)
def test_nothing_is_claimed_from_too_little(
    steps: int, count: int, why: str, tmp_path: Path
) -> None:
    a = make_run(tmp_path / "a", swinging(50, 1))
    b = make_run(tmp_path / "b", swinging(500, 2)[: steps if count else 0], count=count or 1)
    comparison = compared(a, b)
    assert comparison.verdict.startswith("It cannot be told which run is faster")
    assert why in comparison.verdict
    assert figure(comparison, "step").judgement == "not judged"
    assert comparison.slower_by(0.05).is_slower is None


def test_other_batch_sizes_are_compared_by_the_sample(tmp_path: Path) -> None:
    a = make_run(tmp_path / "a", swinging(50, 1), batch_size=32)
    b = make_run(tmp_path / "b", swinging(75, 2), batch_size=64)
    comparison = compared(a, b)
    assert comparison.of == "sample"
    assert "faster: a sample takes" in comparison.verdict
    assert "a step takes 32 samples in A and 64 in B: samples are compared" in comparison.notes
    assert comparison.slower_by(0.05).is_slower is False


def test_more_ranks_are_compared_by_all_samples_and_by_those_of_a_rank(tmp_path: Path) -> None:
    a = make_run(tmp_path / "a", swinging(50, 1))
    b = make_run(tmp_path / "b", swinging(60, 2), ranks=2)
    comparison = compared(a, b)
    assert figure(comparison, "samples").judgement == "higher"
    assert figure(comparison, "samples of a rank").judgement == "lower"
    assert "A has 1 rank, B has 2" in comparison.notes[0]


def test_more_ranks_with_an_unknown_batch_cannot_be_judged(tmp_path: Path) -> None:
    a = make_run(tmp_path / "a", swinging(50, 1), batch_size=None)
    b = make_run(tmp_path / "b", swinging(60, 2), ranks=2, batch_size=None)
    slowdown = compared(a, b).slower_by(0.05)
    assert slowdown.is_slower is None
    assert "batch is unknown" in slowdown.why


def test_settings_that_differ_are_told_and_those_that_count_are_not(tmp_path: Path) -> None:
    model = {"name": "Net", "dtype": "float32"}
    a = make_run(tmp_path / "a", swinging(50, 1), model=model, torch="2.12")
    b = make_run(
        tmp_path / "b", swinging(50, 2), model={**model, "dtype": "bfloat16"}, torch="2.13",
        command=("python", "train.py", "--amp"), batch_size=64,
    )  # fmt: skip
    comparison = compared(a, b)
    told = {each.key: (each.a, each.b) for each in comparison.settings}
    assert told == {
        "command": ("python train.py", "python train.py --amp"),
        "loader batch_size": ("32", "64"),
        "model dtype": ("float32", "bfloat16"),
        "torch": ("2.12", "2.13"),
    }


def test_settings_that_find_no_room_are_counted(tmp_path: Path) -> None:
    loaders = {f"set {number}": {"batch_size": number} for number in range(26)}
    a = make_run(tmp_path / "a", swinging(50, 1), loaders=loaders)
    b = make_run(tmp_path / "b", swinging(50, 2), batch_size=None)
    assert "\n  and 6 more, with --json\n" in render_comparison(compared(a, b))


# -- the command ------------------------------------------------------------------------------


def compare_words(stoker: Stoker, *words: str) -> tuple[int, str, str]:
    done = stoker("compare", *words)
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("slower", "limit", "code", "said"),
    [
        (1.0, "20%", 0, "B is not slower than allowed"),
        (1.5, "20%", 1, "B is slower than allowed"),
        (0.5, "20%", 0, "B is not slower than allowed"),
        (1.0, "0.1%", 1, "is wider than 0.1 %"),
    ],
)
def test_an_exit_code_for_scripts(
    slower: float, limit: str, code: int, said: str, stoker: Stoker, tmp_path: Path
) -> None:
    make_run(tmp_path / "a", swinging(50, 1))
    make_run(tmp_path / "b", swinging(50 * slower, 1))
    found, out, err = compare_words(stoker, "a", "b", "--fail-if-slower", limit)
    assert found == code
    assert said in err
    assert out.startswith("A  a: ended well")
    assert "next: stoker report b\n" in err


def test_what_cannot_be_told_is_an_error_with_why_and_fix(stoker: Stoker, tmp_path: Path) -> None:
    make_run(tmp_path / "a", swinging(50, 1))
    make_run(tmp_path / "b", [])
    code, _, err = compare_words(stoker, "a", "b", "--fail-if-slower", "5%")
    assert code == 1
    assert "error: it cannot be told whether B is more than 5 % slower\n  why: B has 0" in err
    assert "\n  fix: " in err
    assert compare_words(stoker, "a", "b")[0] == 0


def test_json_has_the_documented_keys(stoker: Stoker, tmp_path: Path) -> None:
    make_run(tmp_path / "a", swinging(50, 1))
    make_run(tmp_path / "b", swinging(50, 2))
    _, out, _ = compare_words(stoker, "a", "b", "--json", "--fail-if-slower", "30")
    told = json.loads(out)
    assert told["format"] == 1
    assert (told["limit"], told["is_slower"], told["compared"]) == (0.3, False, "step")
    page = (Path(__file__).parent.parent / "docs/compare.md").read_text()
    for key in (*told, *told["figures"][0], *told["settings"][:1], *told["a"]):
        assert f"`{key}`" in page, key


@pytest.mark.parametrize("limit", ["-1%", "0", "five", "101%", "nan", "1e1"])
def test_a_limit_that_is_none_is_refused(limit: str, stoker: Stoker) -> None:
    code, _, err = compare_words(stoker, "a", "b", f"--fail-if-slower={limit}")
    assert code == 2
    assert "write for example 5%" in err


def test_runs_of_which_nothing_is_known_are_shown_as_unknown(tmp_path: Path) -> None:
    for name in ("a", "b"):
        RunFolder(tmp_path / name).make()
    comparison = compared(tmp_path / "a", tmp_path / "b")
    assert "unknown how it ended" in render_comparison(comparison, 100)
    assert json.loads(json.dumps(comparison_json(comparison, 0.05)))["is_slower"] is None
