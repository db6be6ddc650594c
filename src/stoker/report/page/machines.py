"""What the machines did over time: CPU, memory, input and output."""

from __future__ import annotations

from collections.abc import Sequence

from stoker.report.page.axis import Axis
from stoker.report.page.charts import Charts, Title
from stoker.report.page.fleet import Fleet, Pace
from stoker.report.page.markup import Child, Html, joined, section, table, tag
from stoker.report.page.points import Bucket, Curve, make_buckets, make_curve, reading
from stoker.report.page.times import CAPTION, render_cell, time_table
from stoker.units import plural, render_seconds
from stoker.watch.series import known_number
from stoker.watch.summary import Machine

# A machine each as long as they can be told apart; of more, those that stand out.
MAX_CHARTED = 2
MAX_ROWS = 8
OWN = "the run's processes"
# Title, unit, and the curves.
CHARTS = (
    ("CPU cores busy", "cores", ((OWN, "cpu.cores"),)),
    ("Memory", "GiB", ((OWN, "mem.rss_gib"), ("its control group", "mem.cgroup_gib"))),
    ("Files read and written", "MB/s", (("read", "io.read_mb_s"), ("written", "io.write_mb_s"))),
    ("Files opened", "a second", (("opened", "files.opens_s"),)),
    ("Network", "MB/s", (("received", "net.rx_mb_s"), ("sent", "net.tx_mb_s"))),
    ("InfiniBand", "MB/s", (("received", "ib.rx_mb_s"), ("sent", "ib.tx_mb_s"))),
    ("Tasks waiting", "% of time", (("for CPU", "cpu.pressure_pct"), ("for files", "io.pressure_pct"))),
)  # fmt: skip
# What never comes above this is the chatter of any machine.
LEAST = {"MB/s": 0.01}
TABLE = (
    ("CPU cores", "cpu.cores"),
    ("memory GiB", "mem.rss_gib"),
    ("read MB/s", "io.read_mb_s"),
    ("written MB/s", "io.write_mb_s"),
    ("files opened /s", "files.opens_s"),
)


def render_machines(paces: Sequence[Pace], charts: Charts, fleet: Fleet) -> Html | None:
    """Return the quantiles and the time lines of the machines."""
    if not paces:
        return None
    shown = paces[:MAX_CHARTED]
    intro = None
    if len(paces) > 1:
        slow = sum(pace.is_slow for pace in paces)
        keep = "keep the others waiting" if slow > 1 else "keeps the others waiting"
        intro = f"{plural(len(paces), 'machine')}; {f'{slow} {keep}' if slow else 'none is much slower than the others'}."
    return section(
        "CPU, memory and files over time",
        tag("p", intro) if intro else None,
        _quantiles(paces),
        _all(paces, charts, fleet) if len(paces) > 1 else None,
        *(_one(pace, charts) for pace in shown),
        id_="machines",
    )


def _quantiles(paces: Sequence[Pace]) -> Html:
    rows: list[list[Child]] = []
    has_work = any(pace.work_s is not None for pace in paces) and len(paces) > 1
    for pace in paces[:MAX_ROWS]:
        flag = tag("span", "▲ slow", class_="flag") if pace.is_slow else None
        work = ["unknown" if pace.work_s is None else render_seconds(pace.work_s)]
        cells = [render_cell(pace.machine, metric) for _, metric in TABLE]
        rows.append([joined([pace.machine.host, " ", flag]), *(work if has_work else ()), *cells])
    left = len(paces) - MAX_ROWS
    caption = CAPTION
    if left > 0:
        caption += f"; the {MAX_ROWS} with the most work of {len(paces):,}"
    head = ["machine", *(["work in a step"] if has_work else ()), *(title for title, _ in TABLE)]
    return table(caption, head, rows, "numbers")


def _all(paces: Sequence[Pace], charts: Charts, fleet: Fleet) -> Html:
    """Return one chart a metric over all machines."""
    machines = fleet.machines
    figures = []
    for title, unit, curves in CHARTS:
        name, metric = curves[0]
        series = [(machine, metric) for machine in machines]
        # The title says whose they are; beside the least and the most there is no room for it again.
        curve = fleet.curve("median" if name == OWN else f"{name}, median", series, unit)
        figures.append(
            charts.draw(
                Title(f"{title}, {len(machines)} machines"), fleet.buckets, [curve], Axis(unit)
            )
        )
    part = None
    if len(machines) < len(paces):
        part = tag(
            "p",
            f"Of {len(machines)} of {len(paces):,} machines, those with the most work among them.",
        )
    return joined([tag("h3", "All machines"), part, tag("div", *figures, class_="figures three")])


def _one(pace: Pace, charts: Charts) -> Html:
    machine = pace.machine
    buckets = make_buckets(machine.rows, charts.end_s)
    figures = [
        charts.draw(
            Title(title, machine.host),
            buckets,
            _curves(machine, names, buckets, LEAST.get(unit, 0.0)),
            _axis(machine, title, unit),
        )
        for title, unit, names in CHARTS
    ]
    return joined(
        [
            tag("h3", f"{machine.host} ", tag("span", "▲ slow", class_="flag") if pace.is_slow else None),
            tag("div", *figures, class_="figures three"),
            time_table(f"{machine.host} over time", machine, TABLE, charts.end_s),
        ]
    )  # fmt: skip


def _curves(
    machine: Machine, names: Sequence[tuple[str, str]], buckets: Sequence[Bucket], least: float
) -> list[Curve]:
    """Return the curves that say something: what was next to nothing all the time is left out."""
    return [
        make_curve(title, buckets, reading(metric))
        for title, metric in names
        if (stat := machine.stats.get(metric)) is not None and stat.max > least
    ]


def _axis(machine: Machine, title: str, unit: str) -> Axis:
    cores = known_number(machine.facts.get("cores_allowed"))
    limit = known_number(machine.facts.get("memory_limit_gib"))
    if title == "CPU cores busy" and cores:
        return Axis(unit, limit=cores, limit_name=f"of {cores:g}")
    if title == "Memory" and limit:
        return Axis(unit, limit=limit, limit_name=f"limit {limit:.4g}")
    return Axis(unit)
