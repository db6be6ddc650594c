"""Changes to a script, each tied to a place in it, made on its concrete syntax tree."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import libcst as cst
from libcst.metadata import CodeRange, MetadataWrapper, PositionProvider

Place = tuple[int, int]
Span = tuple[int, int, int, int]
Change = Callable[[str], str]
Statement = cst.SimpleStatementLine | cst.BaseCompoundStatement


class UnreachableError(Exception):
    """A change could not be made; `line` says where."""

    def __init__(self, line: int) -> None:
        super().__init__(f"line {line}")
        self.line = line


@dataclass
class Edits:
    """What to change: expressions by their span, statements by their start."""

    lines: list[str]
    values: dict[Span, list[Change]] = field(default_factory=dict)
    before: dict[Place, list[str]] = field(default_factory=dict)
    after: dict[Place, list[str]] = field(default_factory=dict)
    guards: dict[Place, str] = field(default_factory=dict)
    blocks: dict[Place, tuple[Place, str]] = field(default_factory=dict)

    def change(self, node: ast.expr, change: Change) -> None:
        """Rewrite an expression: `change` gets its text, changes inside of it made already."""
        start, end = self.place(node), self._end(node)
        self.values.setdefault((*start, *end), []).append(change)

    def wrap(self, node: ast.expr, template: str) -> None:
        """Rewrite an expression by a template in which `{}` stands for it."""
        self.change(node, lambda text: template.replace("{}", text, 1))

    def insert_before(self, node: ast.stmt, text: str) -> None:
        """Add a statement before this one."""
        _add(self.before, self.place(node), text)

    def insert_after(self, node: ast.stmt, text: str) -> None:
        """Add a statement after this one."""
        _add(self.after, self.place(node), text)

    def guard(self, node: ast.stmt, header: str) -> None:
        """Put one statement under a header like `if RANK == 0:`."""
        self.guards.setdefault(self.place(node), header)

    def enclose(self, first: ast.stmt, last: ast.stmt, header: str) -> None:
        """Put the statements from `first` to `last` under a header."""
        self.blocks[self.place(first)] = (self.place(last), header)

    def place(self, node: ast.expr | ast.stmt) -> Place:
        """Return line and column, in characters."""
        return node.lineno, self._column(node.lineno, node.col_offset)

    def _end(self, node: ast.expr) -> Place:
        line = node.end_lineno or node.lineno
        return line, self._column(line, node.end_col_offset or 0)

    def _column(self, line: int, offset: int) -> int:
        # The syntax tree of Python counts bytes.
        return len(self.lines[line - 1].encode()[:offset].decode(errors="ignore"))


def _add(where: dict[Place, list[str]], place: Place, text: str) -> None:
    if text not in where.setdefault(place, []):
        where[place].append(text)


def apply_edits(text: str, edits: Edits) -> str:
    """Return the text with all changes made; raise UnreachableError rather than make some."""
    wrapper = MetadataWrapper(cst.parse_module(text))
    editor = _Editor(edits, wrapper.module.config_for_parsing)
    done = wrapper.visit(editor)
    left = [
        *(set(edits.values) - editor.done_values),
        *(set(edits.before) | set(edits.after) | set(edits.guards) | set(edits.blocks))
        - editor.done_places,
    ]
    if left:
        raise UnreachableError(min(each[0] for each in left))
    return done.code


class _Editor(cst.CSTTransformer):
    METADATA_DEPENDENCIES = (PositionProvider,)

    def __init__(self, edits: Edits, config: cst.PartialParserConfig) -> None:
        super().__init__()
        self.edits, self.config = edits, config
        self.done_values: set[Span] = set()
        self.done_places: set[Place] = set()

    def on_leave(self, original_node: cst.CSTNode, updated_node: cst.CSTNode) -> object:  # type: ignore[override]
        updated = super().on_leave(original_node, updated_node)
        if isinstance(updated, cst.BaseExpression) and isinstance(
            original_node, cst.BaseExpression
        ):
            span = self._span(original_node)
            if span in self.edits.values and span not in self.done_values:
                self.done_values.add(span)
                code = cst.Module([]).code_for_node(updated)
                for change in self.edits.values[span]:
                    code = change(code)
                return cst.parse_expression(code, self.config)
        return updated

    def leave_IndentedBlock(
        self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock
    ) -> cst.IndentedBlock:
        """Make the changes of statements in one block."""
        body = self._body(original_node.body, updated_node.body)
        return updated_node.with_changes(body=body)

    def leave_Module(self, original_node: cst.Module, updated_node: cst.Module) -> cst.Module:
        """Make the changes of statements of the module itself."""
        return updated_node.with_changes(body=self._body(original_node.body, updated_node.body))

    def _body(
        self, originals: Sequence[cst.CSTNode], updated: Sequence[cst.CSTNode]
    ) -> list[cst.CSTNode]:
        body: list[cst.CSTNode] = []
        until: Place | None = None
        inside: list[cst.CSTNode] = []
        header = ""
        for original, statement in zip(originals, updated, strict=True):
            place = self._span(original)[:2]
            if place in self.edits.blocks and until is None:
                self.done_places.add(place)
                until, header = self.edits.blocks[place]
            made = self._statement(place, statement)
            (body if until is None else inside).extend(made)
            if until == place:
                body.append(self._under(header, inside))
                until, inside = None, []
        return body + inside

    def _statement(self, place: Place, statement: cst.CSTNode) -> list[cst.CSTNode]:
        edits = self.edits
        if place in edits.before or place in edits.after or place in edits.guards:
            self.done_places.add(place)
        if place in edits.guards:
            statement = self._under(edits.guards[place], [statement])
        new = [self._parse(each) for each in edits.before.get(place, [])]
        if new:
            new[0], statement = _move_blank_lines(new[0], statement)
        return [*new, statement, *(self._parse(each) for each in edits.after.get(place, []))]

    def _under(self, header: str, inside: list[cst.CSTNode]) -> cst.CSTNode:
        frame = self._parse(f"{header}\n    pass\n")
        above = getattr(inside[0], "leading_lines", ())
        inside = [inside[0].with_changes(leading_lines=()), *inside[1:]]
        return frame.with_changes(
            body=cst.IndentedBlock(body=inside),  # type: ignore[arg-type]
            leading_lines=above,
        )

    def _parse(self, text: str) -> cst.CSTNode:
        return cst.parse_statement(text if text.endswith("\n") else text + "\n", self.config)

    def _span(self, node: cst.CSTNode) -> Span:
        where = self.get_metadata(PositionProvider, node, None)
        if not isinstance(where, CodeRange):
            return (0, 0, 0, 0)
        return (where.start.line, where.start.column, where.end.line, where.end.column)


def _move_blank_lines(
    first: cst.CSTNode, statement: cst.CSTNode
) -> tuple[cst.CSTNode, cst.CSTNode]:
    """Blank lines stay above what is added; comments stay with their statement."""
    lines = list(getattr(statement, "leading_lines", ()))
    count = next((i for i, line in enumerate(lines) if line.comment is not None), len(lines))
    return (
        first.with_changes(leading_lines=lines[:count]),
        statement.with_changes(leading_lines=lines[count:]),
    )


def with_keyword(call: str, keyword: str) -> str:
    """Return a call with one more argument by name, unless it has it.

    >>> with_keyword("tqdm(loader)", "disable=RANK != 0")
    'tqdm(loader, disable=RANK != 0)'
    """
    node = cst.parse_expression(call)
    assert isinstance(node, cst.Call)
    name = keyword.partition("=")[0]
    if any(each.keyword is not None and each.keyword.value == name for each in node.args):
        return call
    made = cst.parse_expression(f"f({keyword})")
    assert isinstance(made, cst.Call)
    args = list(node.args)
    if args and not isinstance(args[-1].comma, cst.Comma):
        space = cst.SimpleWhitespace(" ")
        args[-1] = args[-1].with_changes(comma=cst.Comma(whitespace_after=space))
    new = node.with_changes(args=[*args, made.args[0]])
    return cst.Module([]).code_for_node(new)


def repair_fstrings(text: str, tree: ast.Module) -> None:
    """Give what is inside of f-strings its true place: Python before 3.12 gets it wrong."""
    wrapper = MetadataWrapper(cst.parse_module(text), unsafe_skip_copy=True)
    places = wrapper.resolve(PositionProvider)
    seen: dict[Place, list[tuple[Place, str]]] = {}
    for node, where in places.items():
        if isinstance(node, cst.FormattedString | cst.ConcatenatedString):
            found = _inside(node, places)
            seen.setdefault((where.start.line, where.start.column), found)
            if isinstance(node, cst.ConcatenatedString):
                seen[(where.start.line, where.start.column)] = found
    lines = text.splitlines()
    for each in [node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)]:
        column = len(lines[each.lineno - 1].encode()[: each.col_offset].decode(errors="ignore"))
        values = _formatted(each)
        found = seen.get((each.lineno, column), [])
        if len(found) == len(values):
            for value, (place, code) in zip(values, found, strict=True):
                _graft(value, place, code, lines)


def _inside(node: cst.CSTNode, places: object) -> list[tuple[Place, str]]:
    found: list[tuple[Place, str]] = []
    for child in node.children:
        if isinstance(child, cst.FormattedStringExpression):
            where = places[child.expression]  # type: ignore[index]
            code = cst.Module([]).code_for_node(child.expression)
            found.append(((where.start.line, where.start.column), code))
            for part in child.format_spec or ():
                if isinstance(part, cst.FormattedStringExpression):
                    inner = places[part.expression]  # type: ignore[index]
                    code = cst.Module([]).code_for_node(part.expression)
                    found.append(((inner.start.line, inner.start.column), code))
        elif isinstance(child, cst.FormattedString | cst.ConcatenatedString):
            found += _inside(child, places)
    return found


def _formatted(node: ast.JoinedStr) -> list[ast.FormattedValue]:
    found = []
    for value in node.values:
        if isinstance(value, ast.FormattedValue):
            found.append(value)
            if isinstance(value.format_spec, ast.JoinedStr):
                found += _formatted(value.format_spec)
    return found


def _graft(value: ast.FormattedValue, place: Place, code: str, lines: list[str]) -> None:
    try:
        new = ast.parse(code, mode="eval").body
    except SyntaxError:
        return
    offset = len(lines[place[0] - 1][: place[1]].encode())
    for node in ast.walk(new):
        if isinstance(node, ast.expr | ast.keyword | ast.arg):
            if node.lineno == 1:
                node.col_offset += offset
            if node.end_lineno == 1:
                node.end_col_offset = (node.end_col_offset or 0) + offset
            node.lineno += place[0] - 1
            node.end_lineno = (node.end_lineno or 1) + place[0] - 1
    value.value = new
