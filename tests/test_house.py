"""The house stays clean: rooms, public names, imports, documents."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import stoker
from stoker.check.rules import RULES
from stoker.cluster import profile
from stoker.commands import VERBS

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src/stoker"
# A room imports only from the rooms before it.
ROOMS = ["errors", "units", "cluster", "plan", "check", "engine", "data", "watch", "advise", "scale",
         "port", "report", "commands"]  # fmt: skip


def modules() -> Iterator[Path]:
    yield from (path for path in PACKAGE.rglob("*.py") if "tour" not in path.parts)


def room_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return parts[0]


@cache
def nodes(path: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(path.read_text())))


def imported_rooms(path: Path) -> Iterator[str]:
    for node in nodes(path):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("stoker."):
            yield (node.module or "").split(".")[1]
        elif isinstance(node, ast.Import):
            yield from (
                each.name.split(".")[1] for each in node.names if each.name.startswith("stoker.")
            )


def test_no_room_imports_from_one_below_it() -> None:
    wrong = [
        f"{path.relative_to(PACKAGE)} imports {room}"
        for path in modules()
        if room_of(path) in ROOMS
        for room in imported_rooms(path)
        if ROOMS.index(room) > ROOMS.index(room_of(path))
    ]
    assert wrong == []


def test_every_module_is_in_a_room() -> None:
    assert {room_of(path) for path in modules()} <= {*ROOMS, "__init__", "__main__"}


def test_public_names_are_exactly_those_promised_and_documented() -> None:
    page = (ROOT / "docs/library.md").read_text()
    for name in stoker.__all__:
        value = getattr(stoker, name)
        assert inspect.getdoc(value), name
        assert f"`{name}" in page, f"{name} is not in docs/library.md"
    assert set(stoker.__all__) == set(stoker._HOME)
    with pytest.raises(AttributeError):
        _ = stoker.no_such_name


def test_every_function_fits_on_a_screen() -> None:
    long = []
    for path in modules():
        for node in nodes(path):
            if isinstance(node, ast.FunctionDef) and node.name not in (
                "add_spec_arguments",
                "read_spec",
            ):
                size = (node.end_lineno or 0) - node.lineno
                if size > 55:
                    long.append(f"{path.name}:{node.name} {size}")
    assert long == []


@pytest.mark.parametrize(
    "words", [["--help"], ["plan", "--cluster", "puhti", "train.py"], ["check", "-"]]
)
def test_heavy_modules_are_never_imported(words: list[str]) -> None:
    code = (
        "import sys, io\nfrom stoker.commands import main\n"
        f"main({words!r})\n"
        "print([name for name in ('torch', 'numpy', 'tensorflow') if name in sys.modules], file=sys.stderr)\n"
        "print('argparse' in sys.modules, file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, input="", check=True
    )
    heavy, argparse = done.stderr.splitlines()[-2:]
    assert heavy == "[]"
    assert argparse == str(words != ["--help"])


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_is_a_file_with_help_and_a_page(verb: str) -> None:
    module = importlib.import_module(f"stoker.commands.{verb}")
    assert module.DESCRIPTION
    assert inspect.getdoc(module.run)
    assert (ROOT / f"docs/{verb}.md").is_file()


def test_every_option_is_on_its_page() -> None:
    for verb in VERBS:
        page = (ROOT / f"docs/{verb}.md").read_text()
        if verb == "submit":  # has all options of the plan, and refers to its page
            page += (ROOT / "docs/plan.md").read_text()
        options = (ROOT / f"tests/golden/options-{verb}.txt").read_text().split()
        missing = [
            option for option in options if option not in page and option not in ("-h", "--help")
        ]
        assert missing == [], verb


def test_every_rule_is_on_its_page_with_its_severity_and_title() -> None:
    page = (ROOT / "docs/check.md").read_text()
    for rule in RULES:
        row = next((line for line in page.splitlines() if line.startswith(f"| {rule.code} ")), "")
        assert rule.severity in row, rule.code
        assert rule.title.rstrip(".") in row.replace("\\|", "|"), rule.code


def test_every_key_of_the_profile_schema_is_on_its_page() -> None:
    page = (ROOT / "docs/cluster.md").read_text()
    for name, kind in inspect.getmembers(profile, dataclasses.is_dataclass):
        for each in dataclasses.fields(kind):
            assert f"`{each.name}`" in page or each.name == "name", f"{name}.{each.name}"


def pages() -> list[Path]:
    return [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "benchmarks").glob("*.md")]


def test_links_in_the_pages_lead_somewhere() -> None:
    broken = []
    for page in pages():
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text()):
            if not re.match(r"https?:", target) and not (page.parent / target).exists():
                broken.append(f"{page.name}: {target}")
    assert broken == []


def shown_commands(page: Path) -> list[str]:
    blocks = re.findall(r"```(?:bash|console)\n(.*?)```", page.read_text(), re.DOTALL)
    lines = [line.removeprefix("$ ") for block in blocks for line in block.splitlines()]
    return [line for line in lines if line.startswith("stoker ")]


README_COMMANDS = shown_commands(ROOT / "README.md")


def test_the_readme_shows_commands() -> None:
    assert len(README_COMMANDS) >= 6


@pytest.mark.parametrize("line", README_COMMANDS)
def test_every_command_of_the_readme_works(line: str, tmp_path: Path) -> None:
    for name in ("train.py", "job.sh"):
        (tmp_path / name).write_text((PACKAGE / "commands/tour" / name).read_text())
    line = re.sub(r"\s#.*", "", line)
    command = f"{shlex.quote(sys.executable)} -m {line}"
    if re.match(r"stoker (run|report|top|compare) ", line + " "):
        # Here torch need not be there; and there must be something to look at.
        (tmp_path / "train.py").write_text("print('trained')\n")
        if not line.startswith("stoker run"):
            named = [f" -o {folder}" for folder in re.findall(r"runs/\w+", line)]
            before = [
                f"{shlex.quote(sys.executable)} -m stoker run --quiet{each} train.py"
                for each in named or [""]
            ]
            command = " && ".join([*before, command])
    done = subprocess.run(
        ["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=False,
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
    )  # fmt: skip
    # `check` of a script with errors ends with 1: that is its answer. So is that of two runs
    # without a step, of which cannot be told which one is slower.
    has_answer = "check" in line or "--fail-if-slower" in line
    assert done.returncode in ((0, 1) if has_answer else (0,)), done.stderr
    assert "Traceback" not in done.stderr


def test_the_changelog_has_this_version() -> None:
    assert f"## {stoker.__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_every_finding_is_on_its_page() -> None:
    page = (ROOT / "docs/findings.md").read_text()
    rules = sorted((PACKAGE / "advise/rules").glob("*.py"))
    keys = {key for path in rules for key in re.findall(r'key="([a-z0-9-]+)"', path.read_text())}
    assert len(keys) > 25
    assert not {key for key in keys if f"`{key}`" not in page}
