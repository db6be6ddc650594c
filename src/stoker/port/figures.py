"""Where numbers of a training batch are shown or kept: there they become those of all ranks."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache

from stoker.port.kinds import FORMS, NUMBERS, Kind, Kinds
from stoker.port.script import Scope, pairs, text_of
from stoker.port.training import Training

# Calls that keep what they are given.
_KEEPERS = ("append", "extend", "insert", "update", "add", "add_batch", "put")
_WRAPS = {
    Kind.MEAN: ("mean", "mean_over_ranks({})"),
    Kind.SUM: ("sum", "sum_over_ranks({})"),
    Kind.SIZE: ("", "({} * WORLD_SIZE)"),
}


@dataclass
class Figures:
    """What to wrap, by helper and template, and the places where that is not enough."""

    wraps: list[tuple[ast.expr, str, str]] = field(default_factory=list)
    kept: list[tuple[int, str]] = field(default_factory=list)
    branches: list[tuple[int, str]] = field(default_factory=list)
    # Losses that are sums.
    sums: list[ast.expr] = field(default_factory=list)


@lru_cache(maxsize=1)
def read_figures(training: Training) -> Figures:
    """Return the numbers of a script that must be put together over the ranks."""
    reader = _Reader(training)
    scopes = training.step_scopes()
    for scope in scopes:
        for statement in _statements(training, scope):
            reader.mark(statement)
    for scope in scopes:
        for statement in _statements(training, scope):
            reader.read(statement, scope)
    reader.read_losses()
    return reader.found


def _statements(training: Training, scope: Scope) -> list[ast.stmt]:
    found = [each for each in training.script.own(scope) if isinstance(each, ast.stmt)]
    return sorted(found, key=lambda each: each.lineno)


class _Reader:
    def __init__(self, training: Training) -> None:
        self.training, self.script = training, training.script
        self.kinds = Kinds(training)
        self.found = Figures()
        self.done: set[ast.expr] = set()
        self.batches = [*training.batch_loops(), *training.measured]
        self.feeds = training.feeds()

    def mark(self, statement: ast.stmt) -> None:
        """Note an assignment that goes on from a value of before: it will hold the whole."""
        if isinstance(statement, ast.Assign) and self._goes_on(statement):
            self.kinds.whole.add(statement)

    def _goes_on(self, statement: ast.Assign) -> bool:
        target = statement.targets[0]
        if len(statement.targets) > 1 or not isinstance(target, ast.Name | ast.Attribute):
            return False
        reads = [each for each in ast.walk(statement.value)
                 if isinstance(each, ast.Name | ast.Attribute) and text_of(each) == text_of(target)]  # fmt: skip
        if any(self.kinds.of(each) is not Kind.SAME for each in reads):
            return False
        if (
            isinstance(target, ast.Name)
            and not reads
            and not self._starts_before(statement, target)
        ):
            return False
        if not reads and not isinstance(target, ast.Name):
            return False
        return self.kinds.of(statement.value) in (*NUMBERS, Kind.OTHER)

    def _starts_before(self, statement: ast.stmt, target: ast.Name) -> bool:
        """Whether a name that no gradient passes through has a value before the batches begin."""
        scope = self.script.scope(statement)
        if (scope, target.id) in self.feeds:
            return False
        loops = [each for each in self.script.above(statement) if each in self.batches]
        return bool(loops) and any(
            each.lineno < statement.lineno and not self.script.within(each, loops[0])
            for each in self.script.stores(scope, target.id)
        )

    def read(self, statement: ast.stmt, scope: Scope) -> None:
        """Note what one statement shows or keeps."""
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            self._called(statement.value)
        elif isinstance(statement, ast.AugAssign):
            target = statement.target
            if self.kinds.of(target) is Kind.SAME:
                self._keep(statement.value)
        elif isinstance(statement, ast.Assign) and statement in self.kinds.whole:
            self._keep(statement.value)
        elif isinstance(statement, ast.Assign):
            self._assigned(statement)
        elif isinstance(statement, ast.If | ast.While):
            self._tested(statement)
        elif isinstance(statement, ast.Return) and statement.value is not None:
            if scope in self.training.shared_scopes():
                self._show(statement.value)

    def read_losses(self) -> None:
        """Note the losses that are sums: their gradients, averaged over ranks, are too small."""
        for call in self.training.backwards:
            assert isinstance(call.func, ast.Attribute)
            loss = call.func.value
            if isinstance(loss, ast.Call) and text_of(loss.func).endswith("scale") and loss.args:
                loss = loss.args[0]
            if self.kinds.of(loss) is Kind.SUM:
                self.found.sums.append(loss)

    def _called(self, call: ast.Call) -> None:
        func = call.func
        last = text_of(func).rsplit(".", 1)[-1]
        name = self.script.dotted(func)
        if isinstance(func, ast.Attribute) and self.kinds.of(func.value) is not Kind.SAME:
            return  # `loss.backward()`, `x.add_(…)`: what changes is of this batch
        if self.training.model.holds(func) or name.startswith("torchmetrics"):
            return
        values = [*call.args, *(each.value for each in call.keywords)]
        for value in values:
            if last in _KEEPERS and isinstance(func, ast.Attribute) and not self._syncs(func.value):
                self._keep(value)
            else:
                self._show(value)

    def _syncs(self, owner: ast.expr) -> bool:
        """Whether an object puts its numbers together over the ranks by itself."""
        made = self.kinds.made(owner)
        return made is not None and "torchmetrics" in self.script.dotted(made.func)

    def _assigned(self, statement: ast.Assign) -> None:
        for target, value, place in pairs(statement):
            if isinstance(target, ast.Subscript) and self.kinds.of(target.value) is Kind.SAME:
                if place is None:
                    self._keep(value)

    def _tested(self, statement: ast.If | ast.While) -> None:
        kind = self.kinds.of(statement.test)
        if kind in NUMBERS:
            self._show(statement.test)
        elif kind in (Kind.SAMPLES, Kind.OTHER):
            jumps = ast.Break | ast.Continue | ast.Return
            if any(isinstance(each, jumps) for each in ast.walk(statement)):
                self.found.branches.append((statement.lineno, text_of(statement.test)))

    def _keep(self, value: ast.expr) -> None:
        """Note a value that is kept: samples of one rank would be mistaken for all."""
        if not self._show(value):
            self.found.kept.append((value.lineno, text_of(value)))

    def _show(self, value: ast.expr) -> bool:
        """Wrap the numbers in an expression; `False` if there is more than numbers."""
        if value in self.done:
            return True
        kind = self.kinds.of(value)
        if kind is Kind.SAME:
            return True
        if kind in _WRAPS and not isinstance(value, ast.BinOp | ast.IfExp | ast.UnaryOp):
            helper, template = _WRAPS[kind]
            inner = self._inside(value, kind)
            self.done |= {value, inner}
            self.found.wraps.append((inner, helper, template))
            return True
        if kind in (Kind.SAMPLES, Kind.OTHER) and not isinstance(value, _CONTAINERS):
            return False
        if isinstance(value, ast.Name):
            return self._show_made(value)
        parts = [self._show(each) for each in _parts(value)]
        return bool(parts) and all(parts)

    def _show_made(self, name: ast.Name) -> bool:
        """Put a number together where it is made, if it is made of others."""
        scope = self.script.scope(name)
        store = self.kinds.store(scope, name)
        if not isinstance(store, ast.Assign) or (scope, name.id) in self.feeds:
            return False
        if len(store.targets) > 1 or not isinstance(store.targets[0], ast.Name):
            return False
        if not self._show(store.value):
            return False
        self.kinds.whole.add(store)
        return True

    def _inside(self, value: ast.expr, kind: Kind) -> ast.expr:
        """Return the number without what changes its form: `loss` of `loss.detach().item()`."""
        while kind is not Kind.SIZE:
            inner: ast.expr | None = None
            if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
                if value.func.attr in FORMS and not value.func.attr.startswith(("mul", "div")):
                    inner = value.func.value
            elif isinstance(value, ast.Call) and text_of(value.func) in ("float", "int"):
                inner = value.args[0]
            elif isinstance(value, ast.Attribute) and value.attr == "data":
                inner = value.value
            if inner is None or self.kinds.of(inner) is not kind:
                return value
            if isinstance(inner, ast.BinOp | ast.IfExp | ast.UnaryOp):
                return value
            value = inner
        return value


_CONTAINERS = (
    ast.Tuple,
    ast.List,
    ast.Dict,
    ast.JoinedStr,
    ast.FormattedValue,
    ast.BinOp,
    ast.Call,
)


def _parts(value: ast.expr) -> Iterator[ast.expr]:
    """Yield the expressions that one is made of."""
    if isinstance(value, ast.Call):
        if isinstance(value.func, ast.Attribute):
            yield value.func.value
        yield from value.args
        yield from (each.value for each in value.keywords)
        return
    for each in ast.iter_child_nodes(value):
        if isinstance(each, ast.expr):
            yield each
