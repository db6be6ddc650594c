"""The command line of a verb: how it is read, and how its mistakes are told."""

from __future__ import annotations

import argparse

from stoker.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn


class Parser(argparse.ArgumentParser):
    """An argument parser whose mistakes are reported as what / why / fix."""

    def __init__(self, verb: str, description: str, usage: str | None = None) -> None:
        super().__init__(
            prog=f"stoker {verb}",
            usage=usage,
            description=description,
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    def error(self, message: str) -> NoReturn:
        """Raise instead of exiting, so that every error has one form."""
        raise UsageError(
            message.replace("the following arguments are required:", "missing:"),
            why="the command line could not be understood",
            fix=f"{self.prog} --help",
        )


def split_command(
    parser: argparse.ArgumentParser, words: Sequence[str]
) -> tuple[list[str], list[str], bool]:
    """Return our own options, the user's command, and whether `--` stood between them."""
    index = 0
    while index < len(words) and words[index].startswith("-") and words[index] != "-":
        if words[index] == "--":
            return list(words[:index]), list(words[index + 1 :]), True
        action = parser._option_string_actions.get(words[index])
        index += 2 if action is not None and action.nargs is None else 1
    return list(words[:index]), list(words[index:]), False


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add --json, as every verb that prints facts has it."""
    parser.add_argument("--json", action="store_true", help="print as JSON")
