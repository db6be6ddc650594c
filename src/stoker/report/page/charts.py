"""Numbers over time as SVG that stands without a script, and as the data that a script draws anew."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from stoker.report.page.axis import Axis, nice_top, render_clock, tick_times
from stoker.report.page.markup import Html, joined, tag
from stoker.report.page.points import Bucket, Curve, Value
from stoker.units import render_number

# What is drawn before the script runs, or on paper, is a third of it.
STATIC_POINTS = 120
# In pixels, as in page.css and page.js: bands have their names above, times stand below.
TOP, HEIGHT, BOTTOM = 14, 78, 16
# The curves are drawn in a box of this size and stretched to the place there is.
BOX_WIDTH, BOX_HEIGHT = 1000, 100
MAX_BANDS = 24
# A name takes a part of a chart; a narrower band goes without.
MIN_NAMED_BAND = 0.16


@dataclass(frozen=True)
class Band:
    """A named stretch of the run behind the curves."""

    name: str
    start_s: float
    end_s: float
    is_shaded: bool = False


@dataclass(frozen=True)
class Title:
    """What stands above a chart; whose it is stands above several, and is said of each."""

    text: str
    whose: str = ""
    is_wide: bool = False


@dataclass
class Charts:
    """The charts of a page, which share their time: drawn one by one, their data kept together."""

    end_s: float
    bands: Sequence[Band]
    _times: list[list[float]] = field(default_factory=list)
    _told: list[dict[str, object]] = field(default_factory=list)

    def draw(
        self, title: Title, buckets: Sequence[Bucket], curves: Sequence[Curve], axis: Axis
    ) -> Html:
        """Return a figure; empty where there is nothing to draw."""
        shown = [curve for curve in curves if curve.has_values]
        if not shown:
            return Html("")
        top = _top(shown, axis)
        number = self._keep(buckets, shown, axis, top)
        middles = [bucket.middle_s for bucket in buckets]
        legend = [_legend(index, curve, axis.unit) for index, curve in enumerate(shown)]
        picture = tag(
            "svg",
            self._bands(),
            *_grid(),
            _curves(middles, shown, top, self.end_s),
            *_scale(axis, top),
            _limit(axis, top),
            tag("g", *_tick_texts(self.end_s), class_="times"),
            class_="chart",
            role="img",
            height=TOP + HEIGHT + BOTTOM,
            width="100%",
            aria_label=f"{title.whose} {title.text}, {axis.unit}: {_spoken(shown, axis.unit)}".strip(),
        )
        return tag(
            "figure",
            tag("figcaption", tag("b", title.text), tag("span", *legend, class_="legend")),
            tag("div", picture, class_="plot", data_chart=str(number)),
            class_="wide" if title.is_wide else None,
        )

    def data(self) -> dict[str, object]:
        """Return what the script needs to draw all charts again for another stretch of time."""
        return {
            "end": _short(self.end_s),
            "bands": [[_short(b.start_s), _short(b.end_s), b.name] for b in self.shown_bands()],
            "times": self._times,
            "charts": self._told,
        }

    def shown_bands(self) -> list[Band]:
        """Return the longest bands in the order of time."""
        longest = sorted(self.bands, key=lambda each: each.start_s - each.end_s)[:MAX_BANDS]
        return sorted(longest, key=lambda each: each.start_s)

    def _keep(
        self, buckets: Sequence[Bucket], curves: Sequence[Curve], axis: Axis, top: float
    ) -> int:
        times = [_short(bucket.middle_s, 6) for bucket in buckets]
        if times not in self._times:
            self._times.append(times)
        told: list[dict[str, object]] = []
        for curve in curves:
            each: dict[str, object] = {"name": curve.name, "middle": _shorts(curve.middle)}
            if list(curve.low) != list(curve.middle) or list(curve.high) != list(curve.middle):
                each |= {"low": _shorts(curve.low), "high": _shorts(curve.high)}
            told.append(each)
        self._told.append(
            {"times": self._times.index(times), "unit": axis.unit, "top": top, "curves": told}
        )
        return len(self._told) - 1

    def _bands(self) -> Html:
        parts: list[Html] = []
        for band in self.shown_bands():
            left, right = _part(band.start_s, self.end_s), _part(band.end_s, self.end_s)
            place = {"x": _percent(left), "width": _percent(right - left)}
            parts.append(
                tag(
                    "rect",
                    **place,
                    y=0,
                    height=TOP + HEIGHT,
                    class_="band shaded" if band.is_shaded else "band",
                )
            )
            name = band.name if right - left >= MIN_NAMED_BAND else ""
            parts.append(tag("text", name[:18], x=_percent(left), y=10, dx=3, class_="band-name"))
        return tag("g", *parts, class_="bands")


def _top(curves: Sequence[Curve], axis: Axis) -> float:
    if axis.top is not None:
        return axis.top
    middle = max(value for curve in curves for value in curve.middle if value is not None)
    high = max(value for curve in curves for value in curve.high if value is not None)
    # One reading far above the others would flatten them all: it may leave the chart.
    wanted = min(high, 3 * middle) if middle > 0 else high
    # A limit far above would flatten them as well; then it is told in words only.
    if axis.limit is not None and wanted <= axis.limit <= 4 * wanted:
        wanted = axis.limit
    return nice_top(wanted)


def _grid() -> list[Html]:
    heights = (TOP + HEIGHT * (1 - share) for share in (0.0, 0.5, 1.0))
    return [tag("line", x1=0, x2="100%", y1=y, y2=y, class_="grid") for y in heights]


def _scale(axis: Axis, top: float) -> list[Html]:
    """Return the numbers of the scale, which stand on the curves."""
    half, whole = TOP + HEIGHT / 2, TOP
    return [
        tag("text", f"{top / 2:g}", x=2, y=half + 10, class_="scale"),
        tag("text", f"{top:g} {axis.unit}", x=2, y=whole + 10, class_="scale"),
    ]


def _limit(axis: Axis, top: float) -> Html | None:
    if axis.limit is None or not 0 < axis.limit <= top:
        return None
    y = TOP + HEIGHT * (1 - axis.limit / top)
    line = tag("line", x1=0, x2="100%", y1=y, y2=y, class_="limit")
    name = tag("text", axis.limit_name, x="100%", dx=-2, y=y + 10, class_="limit-name")
    return tag("g", line, name)


def _curves(middles: Sequence[float], curves: Sequence[Curve], top: float, end_s: float) -> Html:
    areas = []
    lines = []
    for index, curve in enumerate(curves):
        points = _thinned(middles, curve)
        area, line = _area(points, top, end_s), _line(points, top, end_s)
        areas.append(tag("path", d=area, class_=f"area curve{index}"))
        lines.append(tag("path", d=line, class_=f"line curve{index}"))
    return tag(
        "svg", *areas, *lines,
        viewBox=f"0 0 {BOX_WIDTH} {BOX_HEIGHT}", preserveAspectRatio="none", class_="curves",
        width="100%", height=HEIGHT, y=TOP,
    )  # fmt: skip


Point = tuple[float, Value, Value, Value]


def _thinned(middles: Sequence[float], curve: Curve) -> list[Point]:
    """Return time, middle, low and high, as many as are drawn without a script."""
    every = math.ceil(len(middles) / STATIC_POINTS) or 1
    points: list[Point] = []
    for start in range(0, len(middles), every):
        part = slice(start, start + every)
        known = [each for each in curve.middle[part] if each is not None]
        low = [each for each in curve.low[part] if each is not None]
        high = [each for each in curve.high[part] if each is not None]
        time_s = sum(middles[part]) / len(middles[part])
        # A gap that is shorter than a point is seen with the script only.
        points.append(
            (time_s, sum(known) / len(known) if known else None, min(low, default=None),
             max(high, default=None))
        )  # fmt: skip
    return points


def _line(points: Sequence[Point], top: float, end_s: float) -> str:
    words = []
    pen = "M"
    for time_s, middle, _, _ in points:
        if middle is None:
            pen = "M"
            continue
        words.append(f"{pen}{_x(time_s, end_s)} {_y(middle, top)}")
        pen = "L"
    # A single point has no length: the round cap of the line makes it a dot.
    if len(words) == 1:
        words.append("h.1")
    return "".join(words)


def _area(points: Sequence[Point], top: float, end_s: float) -> str:
    path = []
    for group in _groups(points):
        if all(low == high for _, _, low, high in group):
            continue
        upper = [f"{_x(t, end_s)} {_y(high or 0.0, top)}" for t, _, _, high in group]
        lower = [f"{_x(t, end_s)} {_y(low or 0.0, top)}" for t, _, low, _ in reversed(group)]
        path.append("M" + "L".join([*upper, *lower]) + "Z")
    return "".join(path)


def _groups(points: Sequence[Point]) -> list[list[Point]]:
    groups: list[list[Point]] = [[]]
    for point in points:
        if point[1] is None:
            groups.append([])
        else:
            groups[-1].append(point)
    return [group for group in groups if group]


def _x(time_s: float, end_s: float) -> str:
    return f"{BOX_WIDTH * _part(time_s, end_s):.1f}".removesuffix(".0")


def _y(value: float, top: float) -> str:
    # Above the top is cut off by the box, but a number need not be endless.
    return f"{BOX_HEIGHT * (1 - min(value / top, 4.0)):.1f}".removesuffix(".0")


def _part(time_s: float, end_s: float) -> float:
    return min(1.0, max(0.0, time_s / end_s)) if end_s > 0 else 0.0


def _percent(share: float) -> str:
    return f"{100 * share:.4g}%"


def _tick_texts(end_s: float) -> list[Html]:
    times, step = tick_times(end_s)
    texts = []
    for time_s in times:
        share = _part(time_s, end_s)
        anchor = "start" if share < 0.04 else "end" if share > 0.96 else "middle"
        text = render_clock(time_s, step) if time_s else "0"
        texts.append(tag("text", text, x=_percent(share), y=TOP + HEIGHT + 12, text_anchor=anchor))
    return texts


def _legend(index: int, curve: Curve, unit: str) -> Html:
    sample = tag(
        "svg",
        tag("line", x1=0, x2=22, y1=5, y2=5, class_=f"line curve{index}"),
        class_="sample", width=22, height=10, aria_hidden="true",
    )  # fmt: skip
    told = curve.told or f"mean {render_number(_mean(curve))} {unit}"
    value = tag("span", told, class_="value", data_whole=told)
    return tag("span", sample, f" {curve.name} ", value, class_="key")


def _spoken(curves: Sequence[Curve], unit: str) -> str:
    return "; ".join(
        f"{curve.name} {curve.told or f'mean {render_number(_mean(curve))} {unit}'}"
        for curve in curves
    )


def _mean(curve: Curve) -> float:
    known = [each for each in curve.middle if each is not None]
    return sum(known) / len(known)


def _shorts(values: Iterable[Value]) -> list[Value]:
    return [None if value is None else _short(value) for value in values]


def _short(value: float, digits: int = 4) -> float:
    short = float(f"{value:.{digits}g}")
    return int(short) if short.is_integer() else short


# -- a bar of parts ------------------------------------------------------------------


def draw_parts(label: str, parts: Sequence[tuple[str, float, str]]) -> Html:
    """Return one bar of parts: name, share and the class that colours each."""
    cells: list[Html] = []
    start = 0.0
    for name, share, kind in parts:
        place = {"x": _percent(start), "width": _percent(share)}
        cells.append(
            tag("rect", tag("title", name), **place, y=18, height=26, class_=f"part {kind}")
        )
        if share >= 0.07:
            size = "" if share >= 0.2 else " small"
            cells.append(
                tag("text", name, x=_percent(start), y=12, dx=1, class_=f"part-name{size}")
            )
        start += share
    return tag(
        "svg", joined(cells), class_="parts", role="img", width="100%", height=46,
        aria_label=f"{label}: {', '.join(name for name, _, _ in parts)}",
    )  # fmt: skip
