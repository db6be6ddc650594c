"""The page in a real browser: no request, no complaint, charts that can be pointed at and zoomed."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path

import pytest

from chromium import Browser, Tab, find_chromium
from stoker.advise.stages import stages_of
from stoker.report.page import render_page
from test_page import CORES, HOSTILE, LOADER
from test_report_run import CPU, DATA_BOUND, add_machine, add_rank, gpu, new_folder, read

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_chromium() is None, reason="no Chromium: scripts/setup-browser"),
]
# The activity of the GPU that comes first, since it does less; and what its legend says of the whole run.
FIRST_GPU = "document.querySelector('#gpus .wide .plot')"
WHOLE = ["mean 40 %", "mean 20 %"]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    program = find_chromium()
    assert program is not None
    browser = Browser(program, tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose names would do harm if they could."""
    folder = new_folder(
        tmp_path_factory.mktemp("run") / "run", id=HOSTILE, command=["python", HOSTILE]
    )
    host = "</script><img src=http://192.0.2.1/x onerror=alert(2)>"
    add_machine(folder, {**CPU, **gpu(0), **gpu(1, duty=40.0)}, host=host, num_gpus=2)
    add_rank(folder, DATA_BOUND, host=host, is_on_device=True)
    summary = read(folder)
    path = tmp_path_factory.mktemp("page") / "a page.html"
    path.write_text(render_page(summary, [LOADER, CORES], stages_of(summary)))
    return path


@pytest.fixture
def tab(browser: Browser, page: Path) -> Tab:
    tab = Tab(browser)
    tab.open(page)
    return tab


def box(tab: Tab) -> dict[str, float]:
    """Bring the chart into sight and return where it is."""
    tab.run(f"{FIRST_GPU}.scrollIntoView({{block: 'center'}})")
    told: dict[str, float] = tab.run(
        f"(b => ({{x: b.x, y: b.y, width: b.width, height: b.height}}))({FIRST_GPU}.getBoundingClientRect())"
    )
    return told


def ticks(tab: Tab) -> list[str]:
    told: list[str] = tab.run(
        f"[...{FIRST_GPU}.querySelectorAll('.times text')].map(each => each.textContent)"
    )
    return told


def values(tab: Tab) -> list[str]:
    told: list[str] = tab.run(
        f"[...{FIRST_GPU}.parentElement.querySelectorAll('.value')].map(each => each.textContent)"
    )
    return told


def window(tab: Tab) -> str:
    return str(tab.run("document.getElementById('window').textContent"))


def test_it_asks_for_nothing_and_complains_of_nothing(tab: Tab, page: Path) -> None:
    asked = [each["request"]["url"] for each in tab.told("Network.requestWillBeSent")]
    assert [each for each in asked if not each.startswith("data:")] == [page.as_uri()]
    complaints = tab.told("Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled")
    assert complaints == []


def test_a_hostile_name_is_a_name(tab: Tab) -> None:
    assert tab.told("Page.javascriptDialogOpening") == []
    assert tab.run("document.querySelector('h1').textContent") == HOSTILE
    assert tab.run("document.images.length") == 0
    assert tab.run("document.scripts.length") == 2


def test_the_policy_stops_a_script_that_is_not_ours(tab: Tab) -> None:
    tab.run(
        "document.body.append(Object.assign(document.createElement('script'), {text: 'pwned = 1'}))"
    )
    assert tab.run("typeof pwned") == "undefined"


def test_every_chart_is_drawn(tab: Tab) -> None:
    drawn = tab.run(
        "[...document.querySelectorAll('.curves')].map(each => ({"
        "paths: [...each.querySelectorAll('.line')].map(path => path.getAttribute('d').length),"
        "width: each.querySelector('.line').getBoundingClientRect().width}))"
    )
    assert len(drawn) > 10
    assert all(min(each["paths"]) > 20 and each["width"] > 100 for each in drawn)


def test_pointing_shows_the_values_of_that_moment(tab: Tab) -> None:
    place = box(tab)
    before = values(tab)
    # The middle of the 31st of sixty seconds; readings swing in a known way, there to their lowest.
    x = place["x"] + place["width"] * 30.5 / 60
    tab.mouse("mouseMoved", x, place["y"] + place["height"] / 2)
    assert values(tab) == ["32.0 %", "16.0 %"]
    assert before == WHOLE
    assert tab.run("document.getElementById('moment').textContent").startswith("at 3")
    shown = tab.run(
        "[...document.querySelectorAll('.cursor')].every(each => each.style.display === '')"
    )
    assert shown
    tab.mouse("mouseMoved", 5, 5)
    assert values(tab) == before


def test_dragging_zooms_all_charts_and_a_button_shows_the_whole_again(tab: Tab) -> None:
    place = box(tab)
    whole = ticks(tab)
    path = tab.run(f"{FIRST_GPU}.querySelector('.line').getAttribute('d')")
    y = place["y"] + place["height"] / 2
    first, last = place["x"] + place["width"] / 4, place["x"] + place["width"] / 2
    tab.mouse("mouseMoved", first, y)
    tab.mouse("mousePressed", first, y, button="left", clickCount=1)
    tab.mouse("mouseMoved", last, y, button="left", buttons=1)
    assert tab.run("document.querySelectorAll('.choice').length") == 1
    tab.mouse("mouseReleased", last, y, button="left", clickCount=1)
    assert window(tab).startswith("15")
    assert ticks(tab) != whole
    assert tab.run(f"{FIRST_GPU}.querySelector('.line').getAttribute('d')") != path
    others = "[...document.querySelectorAll('.times')].every(each => !/^0/.test(each.textContent))"
    assert tab.run(others)
    assert tab.run("document.querySelectorAll('.choice').length") == 0
    tab.run("document.querySelector('[data-do=reset]').click()")
    assert ticks(tab) == whole
    assert window(tab) == "the whole run"


def test_the_wheel_scrolls_the_page_and_zooms_only_where_it_is_asked_to(tab: Tab) -> None:
    turned = (
        f"{FIRST_GPU}.dispatchEvent(new WheelEvent('wheel', "
        "{deltaY: -100, clientX: 300, cancelable: true, ctrlKey: %s}))"
    )
    # An event that nobody cancels scrolls the page.
    assert tab.run(turned % "false") is True
    assert window(tab) == "the whole run"
    assert tab.run(turned % "true") is False
    near = window(tab)
    assert near != "the whole run"
    tab.run(f"{FIRST_GPU}.focus()")
    assert tab.run(turned % "false") is False
    assert window(tab) != near


def test_the_keyboard_does_all_of_it(tab: Tab) -> None:
    box(tab)
    tab.run(f"{FIRST_GPU}.focus()")
    whole = ticks(tab)
    tab.key("ArrowRight")
    tab.key("ArrowRight")
    told = tab.run("document.getElementById('moment').textContent")
    assert "load" in told
    assert "SM" in told
    first = values(tab)
    tab.key("ArrowRight")
    assert values(tab) != first
    tab.key("+")
    tab.key("+")
    assert window(tab) != "the whole run"
    near = window(tab)
    tab.key("ArrowRight", shift=True)
    assert window(tab) != near
    tab.key("-")
    tab.key("0")
    assert (ticks(tab), window(tab)) == (whole, "the whole run")
    tab.key("Escape")
    assert values(tab) == WHOLE


def test_everything_that_works_can_be_reached_by_tab(tab: Tab) -> None:
    reached = set()
    for _ in range(120):
        tab.key("Tab")
        reached.add(tab.run("document.activeElement.className || document.activeElement.id"))
    assert {"plot", "copy", "theme", "scroll"} <= reached


def test_light_and_dark_follow_the_system_and_the_button(tab: Tab) -> None:
    ground = "getComputedStyle(document.documentElement).backgroundColor"
    seen = []
    for scheme in ("light", "dark"):
        feature = {"name": "prefers-color-scheme", "value": scheme}
        tab.ask("Emulation.setEmulatedMedia", features=[feature])
        seen.append(tab.run(ground))
    tab.run("document.getElementById('theme').click()")
    seen.append(tab.run(ground))
    assert seen == ["rgb(255, 255, 255)", "rgb(20, 23, 26)", "rgb(255, 255, 255)"]


@pytest.mark.parametrize("width", [360, 800, 1600])
def test_nothing_is_wider_than_the_screen(browser: Browser, page: Path, width: int) -> None:
    tab = Tab(browser, width=width)
    tab.open(page)
    assert tab.run("document.documentElement.scrollWidth") <= width


def test_without_a_script_the_page_is_whole(browser: Browser, page: Path) -> None:
    tab = Tab(browser, has_script=False)
    tab.open(page)
    lines = tab.run(
        "[...document.querySelectorAll('.curves .line')].map(each => each.getBoundingClientRect().width)"
    )
    assert len(lines) > 10
    assert min(lines) > 100
    assert ticks(tab) == ["0", "15 s", "30 s", "45 s", "1:00"]
    visible = "[...document.querySelectorAll('button')].filter(each => each.offsetParent).length"
    assert tab.run(visible) == 0
    assert values(tab) == WHOLE


def test_on_paper_it_is_light_and_without_buttons(tab: Tab) -> None:
    feature = {"name": "prefers-color-scheme", "value": "dark"}
    tab.ask("Emulation.setEmulatedMedia", media="print", features=[feature])
    ground = "getComputedStyle(document.documentElement).backgroundColor"
    assert tab.run(ground) == "rgb(255, 255, 255)"
    visible = "[...document.querySelectorAll('button')].filter(each => each.offsetParent).length"
    assert tab.run(visible) == 0
    printed = base64.b64decode(tab.ask("Page.printToPDF")["data"])
    assert printed.startswith(b"%PDF")
    assert len(printed) > 20_000
