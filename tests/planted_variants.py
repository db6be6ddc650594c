"""The same causes in trainings of other shapes: other models, batches, workers and delays.

No constant of a rule was chosen by them. What is announced for them is what a stranger would get;
benchmarks/planted.py counts how often it holds.
"""

from __future__ import annotations

from planted_causes import Cause

VARIANTS = {
    "sentences without workers": Cause(
        "variant_sentences", "loader-workers", (), ("workers={workers_to:g}",)
    ),
    "pictures with one worker": Cause(
        "variant_pictures", "loader-workers", ("wait_ms=2.0",),
        ("wait_ms=2.0", "workers={workers_to:g}"),
    ),
    "eight workers that decode": Cause(
        "variant_pictures", "loader-crowded", ("decodes=3", "workers=8"),
        ("decodes=3", "workers={workers_to:g}"),
    ),
    "a slow line in small batches": Cause(
        "variant_sentences", "loader-line", ("kind=split", "batch=6", "batches=150"),
        ("kind=split", "batch=6", "batches=150", "slow=0"),
    ),
    "a slow line in two workers": Cause(
        "variant_sentences", "loader-line", ("kind=split", "workers=2"),
        ("kind=split", "workers=2", "slow=0"),
    ),
    "storage that is slower still": Cause(
        "loading_pipe", "loader-storage", ("pause_ms=9", "batches=40"),
        ("pause_ms=0.5", "batches=40"),
    ),
    "fewer and larger files": Cause(
        "loading_files", "loader-files", ("files=24", "batches=120"),
        ("files=24", "batches=120", "packed=1"),
    ),
    "one new worker in short epochs": Cause(
        "variant_pictures", "loader-restart", ("persistent=0", "epochs=40", "batches=6"),
        ("epochs=40", "batches=6"),
    ),
    "a pipeline that decodes": Cause(
        "variant_pipeline", "tensorflow-pipeline", (), ("fixed=1",), venv="tf"
    ),
    "a rank with twice the batch": Cause(
        "variant_ranks", "slow-rank", ("cause=uneven",), ("cause=uneven", "fixed=1"),
        changes="steps", ranks=2,
    ),
    "crumbs of a wider model": Cause(
        "variant_ranks", "exposed-communication", ("cause=deep",), ("cause=deep", "fixed=1"),
        changes="steps", ranks=2,
    ),
    "large gradients by hand": Cause(
        "variant_ranks", "exposed-communication", ("cause=wide",), ("cause=wide", "fixed=1"),
        changes="steps", ranks=2,
    ),
    "validation that computes": Cause("variant_pauses", "validation", (), ("every={rarer:g}",)),
    "large checkpoints": Cause(
        "variant_pauses", "saving", ("cause=saving", "epochs=24", "batches=10"),
        ("cause=saving", "epochs=24", "batches=10", "every={rarer:g}"),
    ),
    "tables between epochs": Cause(
        "variant_pauses", "between-epochs", ("cause=tables",), ("cause=tables", "fixed=1"),
    ),
    "a table in each step": Cause(
        "variant_pauses", "host-code", ("cause=each step", "rows=40000"),
        ("cause=each step", "fixed=1"),
        changes="steps",
    ),
    "four threads each": Cause(
        "variant_threads", "crowded-cores", (), ("threads=1",), {"OMP_NUM_THREADS": "1"}, copies=2,
        environ={"OMP_NUM_THREADS": "4"},
    ),
}  # fmt: skip
