"""HTML that cannot be broken by what it shows: text is escaped unless it is markup already."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable, Sequence

from stoker.units import printable

# They have no end tag.
VOID = {"meta", "link", "br"}
# A command, an option or an assignment; the name of a function is only named.
TYPED = re.compile(r"[ =]|^-")


class Html(str):
    """Markup, made by the functions here and by nothing else."""

    __slots__ = ()


# What an element may hold; None is left out.
Child = str | None
Attribute = str | float | bool | None


def tag(name: str, /, *children: Child, **attributes: Attribute) -> Html:
    """Return one element; an attribute that is a word of Python has an underscore at its end.

    >>> tag("a", "1 < 2", class_="wide", aria_label='"')
    '<a class="wide" aria-label="&quot;">1 &lt; 2</a>'
    """
    words = [name]
    for key, value in attributes.items():
        label = key.rstrip("_").replace("_", "-")
        if value is True:
            words.append(label)
        elif value is not None and value is not False:
            words.append(f'{label}="{_escaped(value if isinstance(value, str) else f"{value:g}")}"')
    start = f"<{' '.join(words)}>"
    return Html(start if name in VOID else f"{start}{joined(children)}</{name}>")


def joined(children: Iterable[Child]) -> Html:
    """Return markup and text one after the other."""
    return Html(
        "".join(
            child if isinstance(child, Html) else _escaped(child)
            for child in children
            if child is not None
        )
    )


def sentence(text: str, *, can_copy: bool = False) -> Html:
    """Return a sentence in which words between backticks are code; what can be typed can be copied.

    >>> sentence("set `num_workers=4`")
    'set <code>num_workers=4</code>'
    """
    parts = re.split(r"`([^`]+)`", text)
    return joined(
        code(each, can_copy and bool(TYPED.search(each))) if i % 2 else each
        for i, each in enumerate(parts)
    )


def code(text: str, can_copy: bool = False) -> Html:
    """Return code, with a button that copies it where that helps; no script, no button."""
    if not can_copy:
        return tag("code", text)
    label = f"Copy {text if len(text) <= 60 else text[:59] + '…'}"
    button = tag("button", "copy", type="button", class_="copy", hidden=True, aria_label=label)
    return tag("span", tag("code", text), button, class_="command")


def table(
    caption: str, head: Sequence[Child], rows: Iterable[Sequence[Child]], class_: str | None = None
) -> Html:
    """Return a table; the first cell of a row is its header. It scrolls where it is too wide."""
    top = tag("tr", *(tag("th", cell, scope="col") for cell in head))
    body = [
        tag("tr", tag("th", row[0], scope="row"), *(tag("td", cell) for cell in row[1:]))
        for row in rows
    ]
    whole = tag(
        "table",
        tag("caption", caption),
        tag("thead", top),
        tag("tbody", *body),
        class_=class_,
    )
    return tag("div", whole, class_="scroll", tabindex="0", role="region", aria_label=caption)


def pairs(rows: Iterable[tuple[str, Child]]) -> Html:
    """Return names and what they stand for; those without a value are left out."""
    known = [(name, value) for name, value in rows if value]
    return tag("dl", *(tag("div", tag("dt", n), tag("dd", v)) for n, v in known))


def section(title: str, *children: Child, id_: str) -> Html:
    """Return a part of the page under its heading."""
    head = tag("h2", title, id=f"{id_}-title")
    return tag("section", head, *children, id=id_, aria_labelledby=f"{id_}-title")


def script_json(value: object) -> Html:
    """Return a value as JSON that cannot end the element it stands in."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    for letter in "<>&":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return Html(text)


def _escaped(text: str) -> str:
    return html.escape(printable(text))
