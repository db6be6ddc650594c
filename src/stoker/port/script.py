"""A training script as a tree: where a node stands, what a name means, who calls whom."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from functools import cached_property

from stoker.port.edits import repair_fstrings

Function = ast.FunctionDef | ast.AsyncFunctionDef
Scope = ast.Module | Function
Loop = ast.For | ast.While
# Methods of torch objects that a user's own method of the same name must not be mistaken for.
_TORCH_METHODS = frozenset(
    [
        "step",
        "zero_grad",
        "backward",
        "train",
        "eval",
        "to",
        "cuda",
        "cpu",
        "item",
        "state_dict",
        "load_state_dict",
        "parameters",
        "update",
        "append",
        "extend",
        "forward",
        "apply",
        "scale",
    ]
)
# Calls that give back what they were given.
_SAME = frozenset(
    [
        "to",
        "cuda",
        "cpu",
        "half",
        "float",
        "double",
        "bfloat16",
        "train",
        "eval",
        "compile",
        "share_memory",
    ]
)
AROUND = frozenset(
    [
        "tqdm",
        "trange",
        "enumerate",
        "iter",
        "islice",
        "list",
        "tuple",
        "zip",
        "cycle",
        "compile",
        "track",
    ]
)


class Script:
    """The syntax tree of one script, with parents, scopes and names."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tree = ast.parse(text)
        repair_fstrings(text, self.tree)
        self.parents: dict[ast.AST, ast.AST] = {}
        for node in ast.walk(self.tree):
            for child in ast.iter_child_nodes(node):
                self.parents[child] = node
        self.nodes = list(ast.walk(self.tree))

    @cached_property
    def imports(self) -> dict[str, str]:
        """What each imported name stands for."""
        names: dict[str, str] = {}
        for node in self.nodes:
            if isinstance(node, ast.Import):
                for each in node.names:
                    top = each.name.split(".")[0]
                    names[each.asname or top] = each.name if each.asname else top
            elif isinstance(node, ast.ImportFrom):
                for each in node.names:
                    names[each.asname or each.name] = f"{node.module or ''}.{each.name}"
        return names

    @cached_property
    def functions(self) -> dict[str, list[Function]]:
        """All functions and methods by name."""
        found: dict[str, list[Function]] = {}
        for node in self.nodes:
            if isinstance(node, Function):
                found.setdefault(node.name, []).append(node)
        return found

    @cached_property
    def classes(self) -> dict[str, ast.ClassDef]:
        """All classes by name."""
        return {node.name: node for node in self.nodes if isinstance(node, ast.ClassDef)}

    def dotted(self, node: ast.AST) -> str:
        """Return the full name of an expression, imports resolved; empty if it is no name."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return ""
        return ".".join([self.imports.get(node.id, node.id), *reversed(parts)])

    def calls(self, *ends: str) -> Iterator[ast.Call]:
        """Yield the calls whose full name is, or ends with, one of these."""
        for node in self.nodes:
            if isinstance(node, ast.Call):
                name = self.dotted(node.func)
                if any(name == end or name.endswith(f".{end}") for end in ends):
                    yield node

    def methods(self, *names: str) -> Iterator[ast.Call]:
        """Yield the calls of methods with these names, whatever they are called on."""
        for node in self.nodes:
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                if node.func.attr in names:
                    yield node

    def above(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield what is around a node, innermost first."""
        while node in self.parents:
            node = self.parents[node]
            yield node

    def scope(self, node: ast.AST) -> Scope:
        """Return the function around a node, or the module."""
        return next(each for each in self.above(node) if isinstance(each, Scope))

    def within(self, node: ast.AST, outer: ast.AST) -> bool:
        """Whether a node is this one or inside it."""
        return node is outer or any(each is outer for each in self.above(node))

    def statement(self, node: ast.AST) -> ast.stmt:
        """Return the statement that a node is part of."""
        while not isinstance(node, ast.stmt):
            node = self.parents[node]
        return node

    def block(self, statement: ast.AST) -> list[ast.stmt]:
        """Return the list of statements that holds this one."""
        parent = self.parents[statement]
        for name in ("body", "orelse", "finalbody"):
            found = getattr(parent, name, None)
            if isinstance(found, list) and statement in found:
                return found
        return []

    def own(self, scope: Scope) -> Iterator[ast.AST]:
        """Yield the nodes of a function, without those of functions inside it."""
        todo: list[ast.AST] = list(ast.iter_child_nodes(scope))
        while todo:
            node = todo.pop(0)
            yield node
            if not isinstance(node, Function):
                todo.extend(ast.iter_child_nodes(node))

    def stores(self, scope: Scope, name: str) -> list[ast.stmt]:
        """Return the statements of a function that give a name a value, in their order."""
        return self._stores.get((scope, name), [])

    @cached_property
    def _stores(self) -> dict[tuple[Scope, str], list[ast.stmt]]:
        found: dict[tuple[Scope, str], list[ast.stmt]] = {}
        for node in self.nodes:
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                statement = self.statement(node)
                if not isinstance(statement, ast.AugAssign):
                    found.setdefault((self.scope(node), node.id), []).append(statement)
        return found

    def targets_of(self, call: ast.Call) -> list[Function]:
        """Return the functions of this script that a call may mean."""
        func = call.func
        if isinstance(func, ast.Name):
            if func.id in self.classes:
                inits = self.functions.get("__init__", [])
                return [each for each in inits if self.parents[each] is self.classes[func.id]]
            found = self.functions.get(func.id, [])
            plain = [each for each in found if not isinstance(self.parents[each], ast.ClassDef)]
            return plain or self._called_objects(func.id)
        if isinstance(func, ast.Attribute):
            is_self = isinstance(func.value, ast.Name) and func.value.id == "self"
            if is_self or func.attr not in _TORCH_METHODS:
                found = self.functions.get(func.attr, [])
                methods = [each for each in found if isinstance(self.parents[each], ast.ClassDef)]
                return methods or self._called_objects(func.attr)
        return []

    def _called_objects(self, name: str) -> list[Function]:
        """Return `__call__` of the classes that an object of this name is made of."""
        found = self.functions.get("__call__", [])
        return [each for each in found if self.parents[each] in self._objects.get(name, ())]

    @cached_property
    def _objects(self) -> dict[str, list[ast.AST]]:
        found: dict[str, list[ast.AST]] = {}
        for node in self.nodes:
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
                made = self.classes.get(text_of(node.value.func))
                if made is not None:
                    for target in node.targets:
                        last = text_of(target).rsplit(".", 1)[-1]
                        found.setdefault(last, []).append(made)
        return found

    def callers(self, function: Function) -> list[ast.Call]:
        """Return the calls that may mean this function."""
        return self._callers.get(function, [])

    @cached_property
    def _callers(self) -> dict[Function, list[ast.Call]]:
        found: dict[Function, list[ast.Call]] = {}
        for node in self.nodes:
            if isinstance(node, ast.Call):
                for function in self.targets_of(node):
                    found.setdefault(function, []).append(node)
        return found

    def arguments(self, call: ast.Call, function: Function) -> Iterator[tuple[ast.expr, str]]:
        """Yield each argument of a call with the name that the function gives it."""
        spec = function.args
        names = [each.arg for each in (*spec.posonlyargs, *spec.args)]
        is_method = isinstance(self.parents[function], ast.ClassDef)
        if is_method and names[:1] in (["self"], ["cls"]):
            names = names[1:]
        yield from (pair for pair in zip(call.args, names, strict=False))
        for keyword in call.keywords:
            if keyword.arg:
                yield keyword.value, keyword.arg

    def returns(self, function: Function) -> Iterator[ast.expr]:
        """Yield what a function returns."""
        for node in self.own(function):
            if isinstance(node, ast.Return) and node.value is not None:
                yield node.value

    def is_parameter(self, scope: Scope, name: str) -> bool:
        """Whether a name is given to this function by its caller."""
        if isinstance(scope, ast.Module):
            return False
        spec = scope.args
        return name in {each.arg for each in (*spec.posonlyargs, *spec.args, *spec.kwonlyargs)}


def text_of(node: ast.AST) -> str:
    """Return a node as text, in one form for all ways to write it."""
    return ast.unparse(node)


def pairs(assign: ast.stmt) -> Iterator[tuple[ast.expr, ast.expr, int | None]]:
    """Yield each target of an assignment with its value, and its place if the value is one call."""
    if isinstance(assign, ast.AnnAssign) and assign.value is not None:
        yield assign.target, assign.value, None
    if not isinstance(assign, ast.Assign):
        return
    for target in assign.targets:
        if not isinstance(target, ast.Tuple | ast.List):
            yield target, assign.value, None
        elif isinstance(assign.value, ast.Tuple | ast.List):
            yield from ((a, b, None) for a, b in zip(target.elts, assign.value.elts, strict=False))
        else:
            yield from ((each, assign.value, place) for place, each in enumerate(target.elts))


class Flow:
    """Every name that may hold what a few expressions make: a model, a loader."""

    def __init__(self, script: Script, origins: Sequence[ast.expr] = ()) -> None:
        self.script = script
        self.origins = set(origins)
        # (scope, text); attributes of objects are known by text in every scope.
        self.names: set[tuple[Scope | None, str]] = set()
        self._settled = -1
        # In a dict of several, the one key that leads to it, where that is known.
        self.key = self._read_key()

    def _read_key(self) -> object:
        for origin in self.origins:
            parent = self.script.parents[origin]
            if isinstance(parent, ast.Dict):
                key = parent.keys[parent.values.index(origin)]
                return key.value if isinstance(key, ast.Constant) else None
            if isinstance(parent, ast.Assign) and isinstance(parent.targets[0], ast.Subscript):
                key = parent.targets[0].slice
                return key.value if isinstance(key, ast.Constant) else None
        return None

    def add(self, scope: Scope, target: ast.expr) -> None:
        """Note that this target holds it."""
        if isinstance(target, ast.Subscript):
            target = target.value
        if isinstance(target, ast.Attribute):
            self.names.add((None, target.attr))
        elif isinstance(target, ast.Name):
            is_global = any(
                isinstance(node, ast.Global) and target.id in node.names
                for node in self.script.own(scope)
            )
            self.names.add((self.script.tree if is_global else scope, target.id))

    def settle(self) -> Flow:
        """Follow assignments, arguments and returns until nothing is added."""
        while self._settled != len(self.names):
            self._settled = len(self.names)
            for node in self.script.nodes:
                if isinstance(node, ast.Assign | ast.AnnAssign):
                    for target, value, place in pairs(node):
                        if self.holds(value, place):
                            self.add(self.script.scope(node), target)
                elif isinstance(node, ast.withitem) and node.optional_vars is not None:
                    if self.holds(node.context_expr):
                        self.add(self.script.scope(node), node.optional_vars)
                elif isinstance(node, ast.Call):
                    for function in self.script.targets_of(node):
                        for value, name in self.script.arguments(node, function):
                            if self.holds(value):
                                self.names.add((function, name))
        return self

    def holds(self, node: ast.expr, place: int | None = None) -> bool:
        """Whether an expression is it, or a container with it."""
        if node in self.origins:
            return True
        if isinstance(node, ast.Name):
            return self._holds_name(node)
        if isinstance(node, ast.Attribute):
            return (None, node.attr) in self.names and node.attr != "module"
        if isinstance(node, ast.Subscript):
            is_other = isinstance(node.slice, ast.Constant) and node.slice.value != self.key
            return self.holds(node.value) and not (is_other and self.key is not None)
        if isinstance(node, ast.IfExp):
            return self.holds(node.body) or self.holds(node.orelse)
        if isinstance(node, ast.DictComp):
            return self.holds(node.value)
        if isinstance(node, ast.Dict):
            return any(self.holds(each) for each in node.values)
        if isinstance(node, ast.List | ast.Tuple):
            return any(self.holds(each) for each in node.elts)
        return isinstance(node, ast.Call) and self._holds_call(node, place)

    def _holds_name(self, node: ast.Name) -> bool:
        for scope in (each for each in self.script.above(node) if isinstance(each, Scope)):
            if (scope, node.id) in self.names:
                return True
            if self.script.is_parameter(scope, node.id):
                return False
        return False

    def _holds_call(self, node: ast.Call, place: int | None) -> bool:
        func = node.func
        if isinstance(func, ast.Attribute) and func.attr in _SAME and self.holds(func.value):
            return True
        if self.script.dotted(func).split(".")[-1] in AROUND:
            return any(self.holds(each) for each in node.args)
        for function in self.script.targets_of(node):
            if function.name == "__init__":
                continue
            for value in self.script.returns(function):
                if isinstance(value, ast.Tuple) and place is not None:
                    if place < len(value.elts) and self.holds(value.elts[place]):
                        return True
                elif place is None and self.holds(value):
                    return True
        return False
