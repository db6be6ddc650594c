"""TensorFlow's input pipeline: stages that work one element at a time, and none ahead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stoker.advise.finding import Finding, Rule
from stoker.advise.rules.loading import EFFICIENCY, PASSING
from stoker.advise.wait import LEAST_GAIN, level_of, read_wait
from stoker.units import render_number
from stoker.watch.series import known_number
from stoker.watch.summary import Rank, Summary

# Stages that do one element after the other unless they are given `num_parallel_calls`.
ONE_BY_ONE = {"Map": "map", "Interleave": "interleave"}
# Python code runs on one core at a time: on a busy one, more calls only wait for each other.
PYTHON_BUSY = 0.7


def serial_pipeline(summary: Summary) -> Finding | None:
    """Elements are made one after the other, or only when training asks for them."""
    wait = read_wait(summary)
    if wait is None or wait.cause != "tensorflow" or wait.cores is None:
        return None
    pipeline = training_pipeline(wait.rank)
    stages = [str(each) for each in pipeline.get("stages") or ()]
    serial = [ONE_BY_ONE[each] for each in stages if each in ONE_BY_ONE]
    if pipeline.get("has_python") and wait.busy >= PYTHON_BUSY:
        serial = []
    is_ahead = bool(pipeline.get("prefetch"))
    if (not serial and is_ahead) or not stages or wait.is_taken:
        return None
    # Without a prefetch of its own, TensorFlow may have added one: the load is between the two.
    calls = max(1.0, wait.cores) if serial else 1.0
    used = wait.busy * wait.step_s
    # TensorFlow's threads spin while they wait: what they use may all be work, or hardly any.
    best = max(wait.rest_s, wait.data_s / calls)
    worst = max(
        wait.rest_s * PASSING,
        wait.step_s / (calls * EFFICIENCY) if serial else wait.data_s / EFFICIENCY,
        used / (max(wait.cores_left or 0.0, wait.busy) * EFFICIENCY),
    )
    gain = wait.gain(min(best, wait.step_s), min(worst, wait.step_s))
    if gain.expected < LEAST_GAIN:
        return None
    missing = [f"`.{name}` without num_parallel_calls" for name in dict.fromkeys(serial)]
    missing += [] if is_ahead else ["no `.prefetch` at its end"]
    fixes = [f".{name}(…, num_parallel_calls=tf.data.AUTOTUNE)" for name in dict.fromkeys(serial)]
    fixes += [] if is_ahead else [".prefetch(tf.data.AUTOTUNE) as the last stage"]
    return Finding(
        key="tensorflow-pipeline",
        level=level_of(gain),
        what=f"The input pipeline works one element at a time: {' and '.join(missing)}.",
        why=f"{wait.sentence()}, while {render_number(wait.busy)} of {wait.cores:g} cores "
        "are busy.",
        fix=f"{', and '.join(fixes)}.",
        confidence="medium",
        safety="B" if serial else "A",
        gain=gain,
        figures=wait.figures(),
    )


def training_pipeline(rank: Rank) -> Mapping[str, Any]:
    """Return the pipeline that gave most batches."""
    told = rank.facts.get("tf_data")
    values = told.values() if isinstance(told, dict) else ()

    def batches(pipeline: Mapping[str, Any]) -> float:
        count = known_number(pipeline.get("batches")) or rank.steps
        return count * (known_number(pipeline.get("iterators")) or 1)

    return max((each for each in values if isinstance(each, dict)), key=batches, default={})


RULES: tuple[Rule, ...] = (serial_pipeline,)
