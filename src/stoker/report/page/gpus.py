"""What the GPUs did over time: a row of charts for each, the worst of many, and all together."""

from __future__ import annotations

from collections.abc import Sequence

from stoker.report.machines import GPU_COLUMNS, gpu_facts
from stoker.report.page.axis import Axis
from stoker.report.page.charts import Charts, Title
from stoker.report.page.fleet import Fleet, GpuPlace
from stoker.report.page.markup import Child, Html, joined, section, table, tag
from stoker.report.page.points import make_buckets, make_curve, reading
from stoker.report.page.times import CAPTION, render_cell, time_table
from stoker.units import render_number
from stoker.watch.series import known_number
from stoker.watch.summary import Machine

MAX_GPUS = 8
ACTIVITY = (("load", "duty_pct"), ("SM", "sm_pct"), ("tensor", "tensor_pct"))
UNITS = {"mem_gib": "GiB", "power_w": "W"}


def render_gpus(
    gpus: Sequence[GpuPlace], charts: Charts, machines: Sequence[Machine], fleet: Fleet
) -> Html:
    """Return the time lines and the quantiles of the GPUs."""
    if not gpus:
        told = any(gpu_facts(machine) for machine in machines)
        why = "The GPUs told nothing." if told else "No GPU was seen on the machines of this run."
        return section("GPUs over time", tag("p", why), id_="gpus")
    shown = gpus[:MAX_GPUS]
    is_many = len({gpu.machine.host for gpu in gpus}) > 1
    intro = ""
    if len(gpus) > MAX_GPUS:
        intro = (
            f"{len(gpus):,} GPUs. One by one are shown the {MAX_GPUS} that stand out: never used, on a "
            "machine that keeps the others waiting, or the least busy. All are in the first table."
        )
    return section(
        "GPUs over time",
        tag("p", intro) if intro else None,
        _all(gpus, charts, fleet) if len(gpus) > 1 else None,
        _quantiles(shown, is_many),
        *(_one(gpu, charts, is_many) for gpu in shown),
        id_="gpus",
    )


def _name(gpu: GpuPlace, is_many: bool) -> str:
    return f"{gpu.machine.host} GPU {gpu.index}" if is_many else f"GPU {gpu.index}"


def _flags(gpu: GpuPlace) -> Html | None:
    return joined(tag("span", f"▲ {flag}", class_="flag") for flag in gpu.flags)


def _quantiles(gpus: Sequence[GpuPlace], is_many: bool) -> Html:
    rows: list[list[Child]] = []
    for gpu in gpus:
        cells = [render_cell(gpu.machine, gpu.metric(metric)) for _, metric in GPU_COLUMNS]
        rows.append([joined([_name(gpu, is_many), " ", _flags(gpu)]), *cells])
    return table(CAPTION, ["GPU", *(title for title, _ in GPU_COLUMNS)], rows, "numbers")


def _all(gpus: Sequence[GpuPlace], charts: Charts, fleet: Fleet) -> Html:
    """Return all GPUs: the mean of each in a table, and over time in one chart a metric."""
    read = {id(machine) for machine in fleet.machines}
    shown = [gpu for gpu in gpus if id(gpu.machine) in read]
    figures = []
    for title, metric in GPU_COLUMNS:
        unit = UNITS.get(metric, "%")
        axis = Axis(unit, top=100.0 if unit == "%" else None)
        series = [(gpu.machine, gpu.metric(metric)) for gpu in shown]
        curve = fleet.curve("median", series, unit)
        name = title.removesuffix(f" {unit}")
        text = f"{name[0].upper()}{name[1:]}, {len(shown):,} GPUs"
        figures.append(charts.draw(Title(text), fleet.buckets, [curve], axis))
    part = None
    if len(shown) < len(gpus):
        part = tag(
            "p", f"The charts are of {len(fleet.machines)} of the machines, the table is of all."
        )
    return joined(
        [tag("h3", "All GPUs"), _spread(gpus), part, tag("div", *figures, class_="figures three")]
    )


def _spread(gpus: Sequence[GpuPlace]) -> Html:
    """Return how the means of the GPUs are spread."""
    rows = []
    for title, metric in GPU_COLUMNS:
        stats = [gpu.machine.stats.get(gpu.metric(metric)) for gpu in gpus]
        means = sorted(stat.mean for stat in stats if stat is not None)
        if means:
            places = [round(share * (len(means) - 1)) for share in (0.0, 0.1, 0.5, 0.9, 1.0)]
            rows.append([title, *(render_number(means[place]) for place in places)])
    head = ["reading", "least", "10 % below", "median", "90 % below", "most"]
    return table(f"The means of {len(gpus):,} GPUs", head, rows, "numbers")


def _one(gpu: GpuPlace, charts: Charts, is_many: bool) -> Html:
    name = _name(gpu, is_many)
    buckets = make_buckets(gpu.machine.rows, charts.end_s)
    facts = {known_number(each.get("index")): each for each in gpu_facts(gpu.machine)}
    size = known_number(facts.get(gpu.index, {}).get("memory_gib"))
    card = str(facts.get(gpu.index, {}).get("name") or "")
    activity = [
        make_curve(title, buckets, reading(gpu.metric(metric))) for title, metric in ACTIVITY
    ]
    memory = make_curve("allocated", buckets, reading(gpu.metric("mem_gib")))
    power = make_curve("drawn", buckets, reading(gpu.metric("power_w")))
    limit = Axis("GiB", limit=size, limit_name=f"of {size:.4g}" if size else "")
    figures = [
        charts.draw(Title("Load, SM and tensor cores", name, is_wide=True), buckets, activity, Axis("%", 100.0)),
        charts.draw(Title("Memory", name), buckets, [memory], limit),
        charts.draw(Title("Power", name), buckets, [power], Axis("W")),
    ]  # fmt: skip
    return joined(
        [
            tag("h3", f"{name}{f', {card}' if card else ''} ", _flags(gpu)),
            tag("div", *figures, class_="figures"),
            _details(name, gpu, charts.end_s),
        ]
    )


def _details(name: str, gpu: GpuPlace, end_s: float) -> Html:
    """Return the time line as a table, for whoever does not see the charts."""
    columns = [(title, gpu.metric(metric)) for title, metric in GPU_COLUMNS]
    return time_table(f"{name} over time", gpu.machine, columns, end_s)
