"""What a tf.data pipeline is made of: its stages, and what makes it slow or quick."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

MAX_PIPELINES = 8
MAX_STAGES = 24


def note_pipeline(facts: dict[str, Any], dataset: Any) -> None:
    """Add a pipeline to what is known of the process, or count one more iterator over it."""
    stages = list(_stages(dataset))
    names = [type(each).__name__.strip("_").removesuffix("Dataset") for each in stages]
    pipelines = facts.setdefault("tf_data", {})
    key = " < ".join(names)
    if key in pipelines:
        pipelines[key]["iterators"] += 1
        return
    if len(pipelines) >= MAX_PIPELINES:
        return
    batches = int(dataset.cardinality())
    pipelines[key] = {
        "stages": names,
        "prefetch": _ends_with_prefetch(names),
        "has_python": any(_runs_python(each) for each in stages),
        "batch_size": next((size for each in stages if (size := _batch_size(each))), None),
        "batches": batches if batches >= 0 else None,
        "iterators": 1,
    }


def _stages(dataset: Any) -> Iterable[Any]:
    """Yield a dataset and those it is made of, the last stage of the pipeline first."""
    for _ in range(MAX_STAGES):
        yield dataset
        inputs = dataset._inputs()
        if not inputs:
            return
        dataset = inputs[0]


def _ends_with_prefetch(names: list[str]) -> bool:
    return next((name for name in names if name not in ("Options", "Model")), "") == "Prefetch"


def _runs_python(stage: Any) -> bool:
    """Say whether a stage calls back into Python, where one call waits for the other."""
    graph = getattr(getattr(getattr(stage, "_map_func", None), "function", None), "graph", None)
    return graph is not None and any("PyFunc" in each.type for each in graph.get_operations())


def _batch_size(stage: Any) -> int | None:
    size = getattr(stage, "_batch_size", None)
    return None if size is None else int(size)
