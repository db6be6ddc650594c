"""The page of a run: whole in itself, harmless, bounded, and readable without colours or a script."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
import shutil
import tempfile
from dataclasses import dataclass, field, replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from effort import examples
from stoker.advise.finding import Finding, Gain, Waste
from stoker.advise.spent import Spent
from stoker.advise.stages import Stage, stages_of
from stoker.report.page import HERE, render_page
from stoker.report.page import charts as charts_module
from stoker.report.page.axis import TICK_STEPS_S, Axis, render_clock, tick_times
from stoker.report.page.charts import Band, Charts, Title
from stoker.report.page.head import weaknesses
from stoker.report.page.markup import VOID, script_json, sentence
from stoker.report.page.points import (
    MAX_POINTS,
    make_buckets,
    make_curve,
    reading,
    spread_of,
    step_quantiles,
)
from stoker.report.page.stages import make_bands
from stoker.watch.folder import RunFolder
from stoker.watch.series import Row, Stat, merged
from stoker.watch.summary import Machine, Rank, Summary
from test_report_run import (
    CPU,
    DATA_BOUND,
    add_machine,
    add_rank,
    gpu,
    new_folder,
    read,
    slow_rank_run,
)

HOSTILE = "<script>alert(1)</script>"
LOADER = Finding(
    key="loader-workers", level="problem", what="The loader has too few workers.",
    why="Waiting for data takes 62 % of each step.", fix="Set `num_workers=8` in `DataLoader`.",
    confidence="high", safety="B", gain=Gain(1.8, 2.2, 2.6, 2.0), figures={"data_share": 0.62},
)  # fmt: skip
CORES = Finding(
    key="cores-idle", level="advice", what="Cores are idle.", why="3 of 16 were busy.",
    fix="Ask for `--cpus-per-task=4`.", confidence="medium", waste=Waste("12 of 16 CPUs", 0.08),
)  # fmt: skip


@dataclass
class Element:
    """One element of a page, its text and what is in it."""

    name: str
    attributes: dict[str, str | None]
    inside: list[Element] = field(default_factory=list)
    text: str = ""

    def all(self, name: str | None = None, class_: str | None = None) -> list[Element]:
        found = [] if self.name == "" else [self]
        found = [e for e in found if name in (None, e.name) and (not class_ or class_ in e.classes)]
        return found + [each for child in self.inside for each in child.all(name, class_)]

    @property
    def classes(self) -> list[str]:
        return (self.attributes.get("class") or "").split()


class Tree(HTMLParser):
    """Reads a page, and refuses elements that are not closed in their order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.root = Element("", {})
        self._open = [self.root]
        self.feed(page)
        self.close()
        assert self._open == [self.root], [each.name for each in self._open]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, dict(attrs))
        self._open[-1].inside.append(element)
        if tag not in VOID:
            self._open.append(element)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop().name == tag

    def handle_data(self, data: str) -> None:
        for element in self._open:
            element.text += data


def parse(page: str) -> Element:
    return Tree(page).root


def make_summary(tmp_path: Path) -> Summary:
    """A run on two GPUs, of which one was never used."""
    folder = new_folder(tmp_path / "run")
    readings = {**CPU, **gpu(0), **gpu(1, duty=0.0, is_mine=False)}
    add_machine(folder, readings, num_gpus=2)
    add_rank(folder, DATA_BOUND, is_on_device=True)
    return read(folder)


def make_page(summary: Summary, *findings: Finding, cost: Spent | None = None) -> str:
    return render_page(summary, findings, stages_of(summary), cost)


# -- what is on it -------------------------------------------------------------------


def test_the_page_has_its_parts_in_order(tmp_path: Path) -> None:
    cost = Spent("BU", 40.0, 10.0, "1 x 2 GPUs; idle 25 % of the time")
    page = parse(make_page(make_summary(tmp_path), LOADER, CORES, cost=cost))
    titles = [each.text for each in page.all("h2")]
    assert titles == [
        "Verdict", "Findings", "One step", "GPUs over time", "CPU, memory and files over time",
        "Slowest lines", "Stages", "Cost", "How to read this page", "How it was made",
    ]  # fmt: skip
    head = page.all("header")[0].text
    for word in ("20261115-065520-train", "ended well", "train.py --epochs 3", "60 s", "400 steps"):
        assert word in head
    assert "10 BU, 25 %" in page.text.replace("\n", " ")


def test_a_finding_shows_everything_that_it_holds(tmp_path: Path) -> None:
    page = parse(make_page(make_summary(tmp_path), LOADER, CORES))
    first, second = page.all("article")
    for word in (LOADER.what, LOADER.why, "1.8–2.2×", "2.6× at most", "B: ", "high", "data_share"):
        assert word in first.text
    assert "12 of 16 CPUs: 8 % of the cost" in second.text
    # What can be typed can be copied; a name is only named.
    copied = [each.all("code")[0].text for each in page.all("article") for each in each.all(class_="command")]  # fmt: skip
    assert copied == ["num_workers=8", "--cpus-per-task=4"]


def test_many_findings_are_bounded(tmp_path: Path) -> None:
    findings = [replace(CORES, key=f"key-{number}") for number in range(300)]
    page = parse(render_page(make_summary(tmp_path), findings, []))
    assert len(page.all("article")) == 40
    assert "260 more findings" in page.text


def test_without_findings_weak_data_is_not_called_healthy(tmp_path: Path) -> None:
    healthy = make_summary(tmp_path)
    assert "Nothing to change was found." in make_page(healthy)
    killed = replace(healthy, state="killed", run={**healthy.run, "exit": -9})
    assert "too weak" in make_page(killed)


def test_the_split_is_a_bar_with_names_and_a_table(tmp_path: Path) -> None:
    page = parse(make_page(make_summary(tmp_path)))
    bar = page.all("svg", "parts")[0]
    assert [each.text for each in bar.all("text")] == ["data 62 %", "forward 14 %", "backward 20 %"]
    assert "optimizer 3 %" in (bar.attributes["aria-label"] or "")
    widths = [float((each.attributes["width"] or "")[:-1]) for each in bar.all("rect")]
    assert sum(widths) == pytest.approx(100, abs=0.1)
    table = page.all("section")[2].all("table")[0]
    assert [each.text for each in table.all("tr")[1].inside[:3]] == ["data", "62.0", "62 %"]


def test_lines_come_with_their_source(tmp_path: Path) -> None:
    page = parse(make_page(make_summary(tmp_path)))
    first = page.all("table", "source")[0].all("tr")[1]
    assert first.all("code")[0].text == "return decode(i)"
    assert "train.py:4 load" in first.text


def test_bands_are_stages_that_are_not_between_others() -> None:
    def stage(name: str, start_s: float, end_s: float) -> Stage:
        return Stage(name, start_s, end_s, 1.0, 1, 0, None, None, {})

    training = [stage("training 1", 10, 50), stage("training 2", 50, 90)]
    between, after = stage("validation", 30, 70), stage("validation", 88, 130)
    begun = stage("start-up", 0, 10)
    assert make_bands([begun, *training, between]) == [
        Band("start-up", 0, 10, is_shaded=True), Band("training 1", 10, 50), Band("training 2", 50, 90),
    ]  # fmt: skip
    assert make_bands([*training, after])[-1] == Band("validation", 88, 130, is_shaded=True)


def test_quantiles_stand_beside_means(tmp_path: Path) -> None:
    page = parse(make_page(make_summary(tmp_path)))
    rows = [row.text for table in page.all("table") for row in table.all("tr") if "80" in row.text]
    assert any("GPU 0" in row and "64 · 80 · 96, max 96" in row for row in rows)


@pytest.mark.parametrize(
    ("changes", "sentence_"),
    [
        ({"state": "killed"}, "what it did not get to"),
        ({"state": "running"}, "The run goes on"),
        ({"ranks": ()}, "No training step was recognised"),
        ({"machines": ()}, "No machine was read"),
        ({"damaged": 3}, "3 lines of the record"),
    ],
)
def test_weak_data_is_said_at_the_top(
    tmp_path: Path, changes: dict[str, object], sentence_: str
) -> None:
    summary = make_summary(tmp_path)
    assert weaknesses(summary) == []
    summary = replace(summary, **changes)  # type: ignore[arg-type]
    page = make_page(summary)
    assert sentence_ in " ".join(weaknesses(summary))
    assert page.index("Less sure than it looks") < page.index(">Verdict<")


def test_what_must_be_known_of_whole_data_does_not_call_it_incomplete(tmp_path: Path) -> None:
    summary = make_summary(tmp_path)
    rank = replace(summary.ranks[0], notes=("others kept 1.5 of the 2 cores busy",))
    page = make_page(replace(summary, ranks=(rank, *summary.ranks[1:])))
    assert "Others kept 1.5 of the 2 cores busy." in page
    assert "incomplete" not in page


def test_a_page_of_nothing_is_still_a_page(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.make()
    page = parse(make_page(read(folder)))
    assert "Nothing was recorded" in page.text
    assert not page.all("figure")


# -- harmless and whole in itself ----------------------------------------------------


def test_hostile_names_are_text(tmp_path: Path) -> None:
    folder = new_folder(tmp_path / "run", id=HOSTILE, cwd="/</style>", command=["python", HOSTILE])
    host = "<b onmouseover=alert(1)>"
    add_machine(folder, {**CPU, **gpu(0)}, host=host, num_gpus=1)
    lines = [['"><img src=x>.py', "</script>", 4, 21.0, 21.5, '" onload="alert(1)']]
    add_rank(folder, DATA_BOUND, host=host, lines=lines, notes=["<i>\u202e\u2028"])
    finding = replace(LOADER, what=HOSTILE, why="`</code>" + HOSTILE + "`", key='"><b>')
    page = render_page(
        read(folder), [finding], [Stage("</script><b>", 0, 9, 9, 1, 0, None, None, {})]
    )
    tree = parse(page)
    assert tree.all("h1")[0].text == HOSTILE
    assert len(tree.all("script")) == 2
    assert {each.name for each in tree.all()}.isdisjoint({"img", "i"})
    ours = {name for each in tree.all() for name in each.attributes}
    assert not [name for name in ours if name.startswith("on")]
    assert "\u2028" not in page
    data = json.loads(tree.all("script")[0].text)
    assert data["bands"] == [[0, 9, "</script><b>"]]


def test_json_cannot_end_its_element() -> None:
    text = script_json(["</script>", "&", "\u2028"])
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == ["</script>", "&", "\u2028"]


def test_nothing_is_asked_of_the_network(tmp_path: Path) -> None:
    page = make_page(make_summary(tmp_path), LOADER)
    tree = parse(page)
    links = {each.attributes.get("href") or each.attributes.get("src") for each in tree.all()}
    assert links == {None, "data:,"}
    assert set(re.findall(r"url\(([^)]*)\)", page)) <= {f"#hatch-{each}" for each in ("data", "h2d", "backward", "optimizer", "graph", "comm")}  # fmt: skip
    # The one address is the name of a language, which nobody looks up.
    assert set(re.findall(r"https?://[^\s\"']+", page)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"@import|fetch\(|XMLHttpRequest|WebSocket|sendBeacon", page)


def test_the_policy_allows_our_style_and_script_and_nothing_else(tmp_path: Path) -> None:
    tree = parse(make_page(make_summary(tmp_path)))
    policy = next(
        each.attributes["content"] or ""
        for each in tree.all("meta")
        if each.attributes.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy
    for kind, element in (("style", tree.all("style")[0]), ("script", tree.all("script")[1])):
        digest = base64.b64encode(hashlib.sha256(element.text.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}';" in policy
    assert not [each for each in tree.all() if "style" in each.attributes]


# -- for everybody -------------------------------------------------------------------


def test_headings_never_skip_a_level_and_pictures_have_words(tmp_path: Path) -> None:
    tree = parse(make_page(make_summary(tmp_path), LOADER))
    levels = [int(each.name[1]) for each in tree.all() if re.fullmatch("h[1-6]", each.name)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    pictures = [each for each in tree.all("svg") if each.attributes.get("role") == "img"]
    assert len(pictures) > 8
    assert all(len(each.attributes["aria-label"] or "") > 20 for each in pictures)
    hidden = [each for each in tree.all("svg") if "aria-hidden" in each.attributes]
    inner = tree.all("svg", "curves")
    assert len(pictures) + len(hidden) + len(inner) == len(tree.all("svg"))
    ids = [each.attributes["id"] for each in tree.all() if "id" in each.attributes]
    assert len(ids) == len(set(ids))


def test_time_lines_are_there_without_a_script_and_as_tables(tmp_path: Path) -> None:
    tree = parse(make_page(make_summary(tmp_path)))
    lines = [each for curves in tree.all("svg", "curves") for each in curves.all("path", "line")]
    assert len(lines) > 10
    assert all((each.attributes["d"] or "").startswith("M") for each in lines)
    summaries = [each.text for each in tree.all("summary")]
    assert "GPU 0 over time, as a table" in summaries
    assert "node1 over time, as a table" in summaries


def colours(text: str) -> dict[str, str]:
    return dict(re.findall(r"--(\w+): (#[0-9a-f]{6});", text))


def luminance(colour: str) -> float:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(first: str, second: str) -> float:
    low, high = sorted([luminance(first), luminance(second)])
    return (high + 0.05) / (low + 0.05)


def test_text_and_curves_stand_out_in_light_and_dark() -> None:
    css = (HERE / "page.css").read_text()
    blocks = re.findall(r"\{[^{}]*--ground:[^{}]*\}", css)
    assert len(blocks) == 3
    light, preferred, chosen = (colours(block) for block in blocks)
    assert preferred == chosen
    for theme in (light, preferred):
        for name in ("text", "quiet", "accent", "alarm"):
            assert contrast(theme[name], theme["ground"]) >= 4.5, name
            assert contrast(theme[name], theme["raised"]) >= 4.5, name
        assert contrast(theme["quiet"], theme["band"]) >= 4.5
        for name in ("curve0", "curve1", "curve2"):
            assert contrast(theme[name], theme["ground"]) >= 3, name


def test_the_script_and_the_picture_agree_on_the_size_of_a_chart() -> None:
    script = (HERE / "page.js").read_text()
    told = dict(re.findall(r"(BOX_WIDTH|BOX_HEIGHT|TOP|HEIGHT) = (\d+)", script))
    assert told == {name: str(getattr(charts_module, name)) for name in told}
    assert len(told) == 4
    steps = re.search(r"TICK_STEPS = \[([^]]*)\]", script)
    assert steps is not None
    assert tuple(float(each) for each in steps[1].split(",")) == TICK_STEPS_S


# -- large runs ----------------------------------------------------------------------


def make_fleet(num_machines: int, num_gpus: int, num_rows: int, hours: float = 24) -> Summary:
    """Many machines that differ in their names only, and rows as long ones of a day are."""
    width = hours * 3600 / num_rows
    names = ("duty_pct", "sm_pct", "tensor_pct", "mem_gib", "power_w", "mine_gib")
    rows = []
    for index in range(num_rows):
        value = 50 + 40 * math.sin(index / 9.7)
        stats = {name: Stat(112, value, 9.9, value + 30.1) for name in CPU}
        for number in range(num_gpus):
            stats |= {
                f"gpu.{number}.{n}": Stat(112, value + number, 9.9, value + 30.1) for n in names
            }
        rows.append(Row(index * width, (index + 1) * width, stats))
    whole = merged(rows)
    assert whole is not None
    machines = tuple(
        Machine(f"g{index:04d}", {"cores_allowed": 64}, whole.stats, tuple(rows))
        for index in range(num_machines)
    )
    run = {"id": "fleet", "command": ["python", "train.py"], "start": 1.79e9, "exit": 0}
    return Summary(Path("/runs/fleet"), run, "ended", hours * 3600, (), machines)


@pytest.mark.slow
def test_eight_gpus_for_a_day_are_less_than_a_megabyte() -> None:
    page = render_page(make_fleet(1, 8, 1068), [LOADER], [])
    assert len(page.encode()) < 1e6
    data = json.loads(parse(page).all("script")[0].text)
    assert max(len(times) for times in data["times"]) <= MAX_POINTS


@pytest.mark.slow
def test_a_thousand_nodes_are_less_than_five_megabytes_and_few_charts() -> None:
    page = render_page(make_fleet(1000, 8, 50), [LOADER], [])
    assert len(page.encode()) < 5e6
    tree = parse(page)
    assert len(tree.all("figure")) < 60
    assert max(len(table.all("tr")) for table in tree.all("table")) < 40
    assert "8,000 GPUs" in tree.text


def with_ranks(tmp_path: Path) -> Summary:
    folder = new_folder(tmp_path / "run")
    for number in range(12):
        host = f"node{number}"
        idle = gpu(1, duty=0.0, is_mine=False) if number == 7 else gpu(1)
        add_machine(folder, {**CPU, **gpu(0), **idle}, host=host, num_gpus=2)
        slow = {"data": 90.0} if number == 5 else {"comm": 28.0}
        add_rank(folder, {**DATA_BOUND, **slow}, rank=number, host=host)
    return read(folder)


def test_unused_gpus_and_slow_machines_stand_out(tmp_path: Path) -> None:
    tree = parse(make_page(with_ranks(tmp_path)))
    names = [each.text.strip() for each in tree.all("h3")]
    gpus = [name for name in names if " GPU " in name]
    assert len(gpus) == 8
    assert gpus[0] == "node7 GPU 1, NVIDIA H200 ▲ never used"
    assert [name.split(",")[0] for name in gpus[1:3]] == ["node5 GPU 0", "node5 GPU 1"]
    assert all("slow machine" in name for name in gpus[1:3])
    assert not any("▲" in name for name in gpus[3:])
    assert "node5 ▲ slow" in names
    assert "12 machines; 1 keeps the others waiting." in tree.text


# -- points --------------------------------------------------------------------------


def plain(value: float) -> Stat:
    return Stat(1, value, 0.0, value)


def test_thinning_keeps_the_lowest_and_the_highest() -> None:
    values = [50.0] * 5000
    values[1234], values[4321] = 0.0, 100.0
    rows = [Row(i, i + 1, {"a": plain(value)}) for i, value in enumerate(values)]
    buckets = make_buckets(rows, 5000)
    curve = make_curve("a", buckets, reading("a"))
    assert len(buckets) == MAX_POINTS
    assert min(each for each in curve.low if each is not None) == 0
    assert max(each for each in curve.high if each is not None) == 100
    assert sum(each for each in curve.middle if each is not None) / len(buckets) == pytest.approx(50, abs=0.1)  # fmt: skip


@pytest.mark.parametrize("count", [10, 2000])
def test_a_gap_is_a_gap(count: int) -> None:
    rows = [
        Row(i, i + 1, {"a": plain(1.0)}) for i in (*range(count), *range(9 * count, 10 * count))
    ]
    curve = make_curve("a", make_buckets(rows, 10 * count), reading("a"))
    text = Charts(10 * count, []).draw(
        Title("t"), make_buckets(rows, 10 * count), [curve], Axis("W")
    )
    line = parse(text).all("path", "line")[0].attributes["d"] or ""
    assert None in curve.middle
    assert line.count("M") == 2


@example([0.0, 0.0, 199822.02433826096])
@given(st.lists(st.floats(0, 1e6), min_size=2, max_size=30))
def test_the_spread_of_many_has_their_number_and_highest(values: list[float]) -> None:
    stat = Stat.of(values)
    parts = spread_of(stat)
    assert sum(weight for _, weight in parts) == pytest.approx(len(values))
    highest = max(value for value, _ in parts)
    assert highest <= stat.max or highest == pytest.approx(stat.max)
    assert min(value for value, _ in parts) >= 0


def test_one_long_step_does_not_stretch_the_others() -> None:
    lengths = [Stat.of([0.01] * 99 + [9.0]) for _ in range(10)]
    low, middle, high = step_quantiles(lengths, (0.1, 0.5, 0.9))
    assert (low, middle, high) == pytest.approx((0.01, 0.01, 0.01), rel=0.2)


numbers = st.floats(-1e15, 1e15)
stats = st.builds(Stat, st.integers(1, 9), numbers, st.floats(0, 1e15), numbers)
damaged_rows = st.lists(st.builds(Row, numbers, numbers, st.fixed_dictionaries({"a": stats})))


@given(damaged_rows, st.floats(0.001, 1e15))
def test_no_reading_breaks_a_chart(rows: list[Row], end_s: float) -> None:
    buckets = make_buckets(rows, end_s, 5)
    charts = Charts(end_s, [Band("b", -5, 1e14)])
    tree = parse(
        charts.draw(Title("t"), buckets, [make_curve("a", buckets, reading("a"))], Axis("W"))
    )
    drawn = " ".join(each.attributes.get("d") or "" for each in tree.all("path"))
    assert not re.search("nan|inf", drawn)
    script_json(charts.data())


@given(st.floats(0.001, 1e9))
def test_ticks_are_few_and_within(end_s: float) -> None:
    times, step = tick_times(end_s)
    assert 1 <= len(times) <= 6
    assert times[-1] <= end_s
    assert len({render_clock(each, step) for each in times}) == len(times)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return slow_rank_run(tmp_path_factory.mktemp("whole") / "run").path


@settings(max_examples=examples(25))
@given(st.data())
def test_any_damage_still_gives_a_page(whole: Path, data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "run"
        shutil.copytree(whole, path)
        files = sorted(each for each in path.rglob("*") if each.is_file())
        for file in data.draw(st.lists(st.sampled_from(files), min_size=1, max_size=3)):
            content = bytearray(file.read_bytes())
            for at in data.draw(st.lists(st.integers(0, 1500), min_size=1, max_size=6)):
                if at < len(content):
                    content[at] = data.draw(st.sampled_from(b'0-9"[]{},.:en \n\xff'))
            file.write_bytes(content)
        parse(make_page(read(RunFolder(path)), LOADER))


def test_code_in_sentences_is_escaped() -> None:
    assert sentence("a `<b>` c") == "a <code>&lt;b&gt;</code> c"


def test_ranks_that_are_missing_are_told_once_and_as_the_text_tells_it(tmp_path: Path) -> None:
    summary = make_summary(tmp_path)
    few = replace(summary, ranks=(replace(summary.ranks[0], world=4),))
    (told,) = [each for each in weaknesses(few) if "4 ranks" in each]
    assert told == "Only 1 of 4 ranks left a record."
    # Where only the busiest process is told, nobody is missed.
    (idle,) = (replace(each, steps=0, steady=None) for each in few.ranks)
    assert not [each for each in weaknesses(replace(few, ranks=(idle,))) if "4 ranks" in each]


def test_few_readings_are_few_however_long_each_stands_for(tmp_path: Path) -> None:
    summary = make_summary(tmp_path)
    rare = Row(0, 30, {"cpu.cores": Stat(30, 1.0, 0.0, 1.0)})
    for count, is_told in ((2, True), (5, False)):
        rows = (rare,) * count
        machine = replace(summary.machines[0], stats=merged(rows).stats, rows=rows)  # type: ignore[union-attr]
        told = " ".join(weaknesses(replace(summary, machines=(machine,))))
        assert ("fewer than five times" in told) is is_told


def test_ranks_without_a_machine_are_named(tmp_path: Path) -> None:
    summary = make_summary(tmp_path)
    lost: Rank = replace(summary.ranks[0], host="node9")
    assert "node9 was not read." in weaknesses(replace(summary, ranks=(summary.ranks[0], lost)))
