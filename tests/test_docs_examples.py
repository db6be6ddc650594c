"""What the pages show is what the commands print; `…` stands for what a page leaves out."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TOUR = ROOT / "src/stoker/commands/tour"
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Example:
    """One block of a page: commands with what the page says they print, and the files they need."""

    page: str
    steps: tuple[tuple[str, tuple[str, ...]], ...]
    files: tuple[tuple[str, str], ...]


def examples() -> Iterator[Example]:
    for page in ("README", "docs/plan", "docs/check", "docs/cluster"):
        text = (ROOT / f"{page}.md").read_text()
        files = {
            "train.py": (TOUR / "train.py").read_text().replace("num_workers=8", "num_workers=6")
        }
        for language, block in FENCE.findall(text):
            if language == "bash" and block.startswith("#!"):
                files["job.sh"] = block
            if language == "toml" and page == "docs/cluster":
                files["stoker.toml"] = block
            steps = tuple(_steps(block)) if not language else ()
            if steps:
                yield Example(page, steps, tuple(files.items()))


def _steps(block: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, _, output = part.partition("\n")
        if command.startswith("stoker ") and "sbatch" not in command.replace("--sbatch", ""):
            yield command, tuple(line for line in output.splitlines() if line.strip(" …"))


EXAMPLES = list(examples())


def test_the_pages_have_examples() -> None:
    assert sum(len(example.steps) for example in EXAMPLES) >= 15


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda each: f"{each.page}: {each.steps[0][0]}")
def test_the_page_shows_what_is_printed(example: Example, tmp_path: Path) -> None:
    for name, text in example.files:
        (tmp_path / name).write_text(text)
    program = tmp_path / "bin" / "stoker"
    program.parent.mkdir()
    program.write_text(f'#!/bin/bash\nexec {sys.executable} -m stoker "$@"\n')
    program.chmod(0o755)
    for command, shown in example.steps:
        done = subprocess.run(
            ["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=False,
            env={"PATH": f"{program.parent}:/usr/bin:/bin", "HOME": str(tmp_path)},
        )  # fmt: skip
        assert "Traceback" not in done.stderr
        assert_shown(shown, done.stdout + done.stderr)


def assert_shown(shown: tuple[str, ...], output: str) -> None:
    printed = " ".join(output.split())
    position = 0
    for line in shown:
        pattern = r".*?".join(re.escape(" ".join(part.split())) for part in line.split("…"))
        found = re.compile(pattern).search(printed, position)
        assert found, f"not printed: {line}\n{output}"
        position = found.end()
