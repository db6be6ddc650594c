"""The command line of a verb: how it is read, and how its mistakes are told."""

from __future__ import annotations

import argparse
import os

from stoker.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import NoReturn, TypeVar

    T = TypeVar("T")


class Parser(argparse.ArgumentParser):
    """An argument parser whose mistakes are reported as what / why / fix."""

    def __init__(self, verb: str, description: str, usage: str | None = None) -> None:
        super().__init__(
            prog=f"stoker {verb}",
            usage=usage,
            description=description,
            allow_abbrev=False,
            formatter_class=_formatter,
        )

    def error(self, message: str) -> NoReturn:
        """Raise instead of exiting, so that every error has one form."""
        raise UsageError(
            message.replace("the following arguments are required:", "missing:"),
            why="the command line could not be understood",
            fix=f"{self.prog} --help",
        )


def _formatter(prog: str) -> argparse.HelpFormatter:
    # Where no width is given, argparse imports `shutil` for each argument that is added: 4 ms.
    try:
        width = os.get_terminal_size().columns
    except OSError:
        width = 80
    return argparse.RawDescriptionHelpFormatter(prog, width=width - 2)


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


def typed(read: Callable[[str], T]) -> Callable[[str], T]:
    """Return a reader of values for argparse, which would hide our what / why / fix."""

    def read_value(text: str) -> T:
        try:
            return read(text)
        except UsageError as error:
            raise argparse.ArgumentTypeError(f"{error.what}; {error.fix}") from None

    return read_value


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add --json, as every verb that prints facts has it."""
    parser.add_argument("--json", action="store_true", help="print as JSON")
