"""What a number of a training batch is: a mean, a sum or a size of this rank's share.

One process sees the whole batch, a rank its share. What is the same on all ranks needs nothing; a
mean, a sum or a size of the share can be made that of the batch; of the samples themselves a rank
has only its own.
"""

from __future__ import annotations

import ast
from enum import Enum

from stoker.port.script import Function, Scope, pairs, text_of
from stoker.port.training import Training


class Kind(Enum):
    """What an expression holds on one rank."""

    SAME = "the same on all ranks"
    MEAN = "a mean over the share"
    SUM = "a sum over the share"
    SIZE = "the size of the share"
    PER_SIZE = "a number over that size"
    MIXED = "made of such numbers"
    SAMPLES = "the samples of the share"
    OTHER = "not to be put together"


NUMBERS = (Kind.MEAN, Kind.SUM, Kind.SIZE, Kind.PER_SIZE, Kind.MIXED)
# What changes the form of a number, not the number.
FORMS = frozenset(
    [
        "item",
        "detach",
        "cpu",
        "cuda",
        "numpy",
        "clone",
        "float",
        "double",
        "half",
        "bfloat16",
        "int",
        "long",
        "tolist",
        "to",
        "type",
        "data",
        "squeeze",
        "contiguous",
        "reshape",
        "view",
        "flatten",
        "requires_grad_",
        "mul_",
        "div_",
        "mul",
        "div",
    ]
)
_SUMS = ("sum", "count_nonzero", "nansum")
_MEANS = ("mean", "nanmean")
_EXTREMES = [
    "max",
    "min",
    "amax",
    "amin",
    "any",
    "all",
    "std",
    "var",
    "median",
    "quantile",
    "norm",
    "unique",
    "bincount",
    "std_mean",
    "cumsum",
]
# Whose functions and layers give a sample for each sample.
_SAMPLEWISE = ("torch", "torchvision", "self")
# Attributes and methods that tell the shape: all ranks have the same, but for the first size.
_SHAPES = ("shape", "dtype", "device", "ndim", "dim", "is_cuda", "size", "requires_grad")


class Kinds:
    """The kinds of the expressions of one script."""

    def __init__(self, training: Training) -> None:
        self.training = training
        self.script = training.script
        # Assignments that were made to hold the number of all ranks.
        self.whole: set[ast.AST] = set()
        self._active: set[tuple[ast.AST, int | None]] = set()
        self._given: dict[tuple[Scope, str], Kind] = {}

    def of(self, node: ast.expr, place: int | None = None) -> Kind:
        """Return the kind of an expression, or of one place in the tuple that it is."""
        if (node, place) in self._active:
            return Kind.SAME
        self._active.add((node, place))
        try:
            return self._read(node, place)
        finally:
            self._active.discard((node, place))

    def _read(self, node: ast.expr, place: int | None) -> Kind:
        if isinstance(node, ast.Name):
            return self._name(node)
        if isinstance(node, ast.Call):
            return self._call(node, place)
        if isinstance(node, ast.Attribute):
            return self._attribute(node)
        if isinstance(node, ast.Subscript):
            return self._item(node)
        if isinstance(node, ast.BinOp):
            return _combine(node.op, self.of(node.left), self.of(node.right))
        if isinstance(node, ast.UnaryOp | ast.Starred | ast.Await):
            inner = node.operand if isinstance(node, ast.UnaryOp) else node.value
            return self.of(inner, place)
        if isinstance(node, ast.IfExp):
            return join(self.of(node.body, place), self.of(node.orelse, place))
        if isinstance(node, ast.ListComp | ast.GeneratorExp | ast.SetComp | ast.DictComp):
            return self._comprehension(node)
        if isinstance(node, ast.Tuple | ast.List) and place is not None and place < len(node.elts):
            return self.of(node.elts[place])
        inside = [each for each in ast.iter_child_nodes(node) if isinstance(each, ast.expr)]
        return _mixed([self.of(each) for each in inside])

    def _comprehension(
        self, node: ast.ListComp | ast.GeneratorExp | ast.SetComp | ast.DictComp
    ) -> Kind:
        first = self._iterated(node.generators[0].iter)
        if first is Kind.SAME:
            return self.of(node.value if isinstance(node, ast.DictComp) else node.elt)
        return first

    def _iterated(self, node: ast.expr) -> Kind:
        """Return the kind of what a loop over an expression gives."""
        if self.training.is_shared(node):
            return Kind.SAMPLES
        return self.of(node)

    def _name(self, node: ast.Name) -> Kind:
        for each in self.script.above(node):
            for part in getattr(each, "generators", ()):
                if any(isinstance(n, ast.Name) and n.id == node.id for n in ast.walk(part.target)):
                    return self._iterated(part.iter)
        scope = self.script.scope(node)
        store = self.store(scope, node)
        if store is None and self.script.is_parameter(scope, node.id):
            return self._parameter(scope, node.id)
        if store is None and not isinstance(scope, ast.Module):
            store = self.store(self.script.tree, node)
        if store is None:
            return Kind.SAME
        found = self._stored(store, node.id)
        if (scope, node.id) in self.training.losses and found is not Kind.SAME:
            return found if found in (Kind.SUM, Kind.MEAN) else Kind.MEAN
        return found

    def store(self, scope: Scope, node: ast.Name) -> ast.stmt | None:
        """Return the statement that last gave a name its value before it is read here."""
        found: ast.stmt | None = None
        within = self.script.statement(node)
        for each in self.script.stores(scope, node.id):
            is_own = each is within and not isinstance(each, ast.For)
            if is_own or each.lineno > node.lineno:
                continue
            if found is None or each.lineno >= found.lineno:
                found = each
        return found

    def _stored(self, store: ast.stmt, name: str) -> Kind:
        if store in self.whole:
            return Kind.SAME
        if isinstance(store, ast.For):
            return self._looped(store, name)
        if isinstance(store, ast.With):
            return Kind.SAME
        for target, value, place in pairs(store):
            if isinstance(target, ast.Name | ast.Starred) and name in text_of(target).split("*"):
                grown = self._grown(value, store, name)
                return grown if grown is not None else self.of(value, place)
            if isinstance(target, ast.Tuple | ast.List):
                if any(isinstance(n, ast.Name) and n.id == name for n in ast.walk(target)):
                    return self.of(value, place)
        return Kind.SAME

    def _grown(self, value: ast.expr, store: ast.stmt, name: str) -> Kind | None:
        """Return the kind of what is appended to a list that starts empty in a helper."""
        scope = self.script.scope(store)
        if not isinstance(value, ast.List) or value.elts or scope in self.training.shared_scopes():
            return None
        kinds = [
            self.of(call.args[0])
            for call in self.script.methods("append")
            if self.script.scope(call) is scope and call.args
            and isinstance(call.func, ast.Attribute) and text_of(call.func.value) == name
        ]  # fmt: skip
        return kinds[0] if kinds else None

    def _looped(self, loop: ast.For, name: str) -> Kind:
        target, over = loop.target, loop.iter
        if isinstance(over, ast.Call) and text_of(over.func) == "enumerate":
            if isinstance(target, ast.Tuple) and text_of(target.elts[0]) == name:
                return Kind.SAME
        return self._iterated(over)

    def _parameter(self, scope: Scope, name: str) -> Kind:
        assert isinstance(scope, Function)
        if (scope, name) in self._given:
            return self._given[scope, name]
        found = Kind.SAME
        for call in self.script.callers(scope):
            for value, parameter in self.script.arguments(call, scope):
                if parameter == name:
                    found = join(found, self.of(value))
        return found

    def _attribute(self, node: ast.Attribute) -> Kind:
        inner = self.of(node.value)
        if inner is not Kind.SAME:
            if node.attr in _SHAPES:
                return Kind.SAME
            return Kind.MEAN if node.attr == "loss" else inner
        if not isinstance(node.value, ast.Name) or node.value.id != "self":
            return Kind.SAME
        text, found = text_of(node), Kind.SAME
        for store in self.script.nodes:
            if isinstance(store, ast.Assign) and store not in self.whole:
                for target, value, place in pairs(store):
                    if isinstance(target, ast.Attribute) and text_of(target) == text:
                        found = join(found, self.of(value, place))
        return found

    def _item(self, node: ast.Subscript) -> Kind:
        base = node.value
        if isinstance(base, ast.Attribute) and base.attr == "shape":
            is_first = text_of(node.slice) == "0" and self.of(base.value) is Kind.SAMPLES
            return Kind.SIZE if is_first else Kind.SAME
        if isinstance(base, ast.Call) and isinstance(node.slice, ast.Constant):
            return self.of(base, node.slice.value if isinstance(node.slice.value, int) else None)
        return self.of(base)

    def _call(self, node: ast.Call, place: int | None) -> Kind:
        last = text_of(node.func).rsplit(".", 1)[-1]
        values = [*node.args, *(each.value for each in node.keywords)]
        given = [self.of(each) for each in values]
        is_method = isinstance(node.func, ast.Attribute)
        owner = self.of(node.func.value) if isinstance(node.func, ast.Attribute) else Kind.SAME
        if owner is Kind.SAME and all(each is Kind.SAME for each in given):
            if last == "next" and values and self.training.is_shared(values[0]):
                return Kind.SAMPLES
            return self._from_nothing(node, place)
        if last in ("len", "size", "numel", "nelement", "dim"):
            return self._sized(node, last, given[0] if last == "len" else owner)
        if last in ("enumerate", "zip", "items", "values", "reversed", "list", "tuple", "dict"):
            return _mixed([owner, *given])
        if is_method and owner is not Kind.SAME and last in FORMS:
            if last in ("mul", "mul_", "div", "div_"):
                operator = ast.Mult() if "mul" in last else ast.Div()
                return _combine(operator, owner, given[0] if given else Kind.SAME)
            return owner
        if last in ("float", "int"):
            return given[0]
        if last in (*_SUMS, *_MEANS, *_EXTREMES):
            return self._reduced(node, last, owner, given)
        found = self._user(node, place)
        if found is not None:
            return found
        made = self.made(node.func)
        if made is not None and text_of(made.func).endswith("Loss"):
            return _reduction(made)
        if _is_loss_name(last):
            return _reduction(node)
        if owner is Kind.SAMPLES or Kind.SAMPLES in given:
            is_known = owner is Kind.SAMPLES or self.training.model.holds(node.func)
            root = self.script.dotted(node.func).split(".")[0]
            return Kind.SAMPLES if is_known or root in _SAMPLEWISE else Kind.OTHER
        return _mixed([owner, *given])

    def _from_nothing(self, node: ast.Call, place: int | None) -> Kind:
        """Return the kind of a call that is given no batch: a function may hold one all the same."""
        for function in self.script.targets_of(node):
            if function.name != "__init__" and function in self.training.trainers:
                found = self._user(node, place)
                return found or Kind.SAME
        return Kind.SAME

    def _sized(self, node: ast.Call, last: str, kind: Kind) -> Kind:
        if last == "size" and [text_of(each) for each in node.args] != ["0"]:
            return Kind.SAME
        if last == "dim" or kind is Kind.SAME:
            return Kind.SAME
        return Kind.SIZE if kind is Kind.SAMPLES else Kind.SAME

    def _reduced(self, node: ast.Call, last: str, owner: Kind, given: list[Kind]) -> Kind:
        is_of_torch = owner is Kind.SAME
        base = (given[0] if given else Kind.SAME) if is_of_torch else owner
        options = [*node.args[1 if is_of_torch else 0 :], *(each.value for each in node.keywords)]
        dims = [text_of(each) for each in options]
        is_whole = not dims or dims[0] in ("0", "None") or dims == ["True"]
        if base is not Kind.SAMPLES:
            return base if last in (*_SUMS, *_MEANS) else _mixed([owner, *given])
        if not is_whole:
            return Kind.SAMPLES
        if last in _EXTREMES:
            return Kind.OTHER
        return Kind.SUM if last in _SUMS else Kind.MEAN

    def _user(self, node: ast.Call, place: int | None) -> Kind | None:
        """Return the kind of what a function of the script returns, for these arguments."""
        functions = self.script.targets_of(node) or self._forward(node.func)
        found = None
        for function in functions:
            if function.name == "__init__":
                continue
            if function in self.training.shared_scopes():
                return Kind.SAME  # it returns what is put together already
            arguments = self.script.arguments(node, function)
            given = {(function, name): self.of(value) for value, name in arguments}
            before, self._given = self._given, self._given | given
            for value in self.script.returns(function):
                kind = self.of(value, place)
                found = kind if found is None else join(found, kind)
            self._given = before
        return found

    def _forward(self, func: ast.expr) -> list[Function]:
        """Return the forward pass of an object of a class of this script."""
        made = self.made(func)
        name = text_of(made.func) if made is not None else ""
        forwards = self.script.functions.get("forward", [])
        wanted = self.script.classes.get(name)
        return [each for each in forwards if self.script.parents[each] is wanted]

    def made(self, func: ast.expr) -> ast.Call | None:
        """Return the call that made an object: `nn.CrossEntropyLoss()` of `criterion`."""
        last = text_of(func).rsplit(".", 1)[-1]
        for node in self.script.nodes:
            if isinstance(node, ast.Assign):
                for target, value, _ in pairs(node):
                    if text_of(target).rsplit(".", 1)[-1] == last:
                        made = without_moves(value)
                        if isinstance(made, ast.Call):
                            return made
        return None


def without_moves(node: ast.expr) -> ast.expr:
    """Return what is moved: `nn.MSELoss()` of `nn.MSELoss().to(device)`."""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr not in ("to", "cuda"):
            break
        node = node.func.value
    return node


def join(left: Kind, right: Kind) -> Kind:
    """Return the kind of what may be one or the other."""
    if left is right or right is Kind.SAME:
        return left
    if left is Kind.SAME:
        return right
    return Kind.OTHER if Kind.SAMPLES in (left, right) else Kind.MIXED


def _mixed(kinds: list[Kind]) -> Kind:
    seen = {each for each in kinds if each is not Kind.SAME}
    for each in (Kind.OTHER, Kind.SAMPLES):
        if each in seen:
            return each
    return Kind.MIXED if seen else Kind.SAME


def _combine(operator: ast.operator, left: Kind, right: Kind) -> Kind:
    if Kind.OTHER in (left, right):
        return Kind.OTHER
    if Kind.SAMPLES in (left, right):
        return Kind.SAMPLES
    if isinstance(operator, ast.Mult | ast.Div):
        if right is Kind.SAME:
            return left
        if left is Kind.SAME:
            if isinstance(operator, ast.Mult):
                return right
            return Kind.PER_SIZE if right is Kind.SIZE else Kind.MIXED
        if isinstance(operator, ast.Mult) and {left, right} == {Kind.MEAN, Kind.SIZE}:
            return Kind.SUM
        if isinstance(operator, ast.Mult) and {left, right} == {Kind.SUM, Kind.PER_SIZE}:
            return Kind.MEAN
        if isinstance(operator, ast.Div) and (left, right) == (Kind.SUM, Kind.SIZE):
            return Kind.MEAN
        return Kind.MIXED
    if left is right:
        return left
    if Kind.SAME in (left, right) and Kind.MEAN in (left, right):
        return Kind.MEAN
    return Kind.SAME if left is right is Kind.SAME else Kind.MIXED


def _is_loss_name(name: str) -> bool:
    known = ("cross_entropy", "criterion", "crit", "nll", "mse", "l1", "kl_div", "objective")
    return name in known or any(each in name.lower() for each in ("loss", "cross_entropy"))


def _reduction(node: ast.Call) -> Kind:
    for each in node.keywords:
        if each.arg == "reduction" and isinstance(each.value, ast.Constant):
            return {"sum": Kind.SUM, "none": Kind.SAMPLES}.get(str(each.value.value), Kind.MEAN)
    return Kind.MEAN
