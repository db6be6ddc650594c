"""What a script trains and how: its model, optimizer, loaders and loops."""

from __future__ import annotations

import ast
import itertools
from dataclasses import dataclass, field

from stoker.port.script import Flow, Function, Loop, Scope, Script, pairs, text_of

_NO_OPTIMIZER = ("lr_scheduler", "swa_utils", "clip_grad", "Optimizer")


@dataclass
class Optimizer:
    """One call that makes an optimizer."""

    call: ast.Call
    name: str
    roots: dict[str, ast.expr]


@dataclass
class Loader:
    """One call that makes a DataLoader, and the loops that train with it."""

    call: ast.Call
    flow: Flow
    loops: list[ast.For] = field(default_factory=list)
    # Whether each rank takes its share of it: what is trained with, and what shares a loop with that.
    is_shared: bool = False

    @property
    def trains(self) -> bool:
        """Whether batches of it are trained with."""
        return bool(self.loops)


class Training:
    """Everything that a port needs to know of a script."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.backwards = [
            call
            for call in script.methods("backward")
            if script.dotted(call.func) not in ("torch.autograd.backward",)
        ]
        self.optimizers = _read_optimizers(script)
        self.trainers = _read_trainers(script, self.backwards)
        self.model = _follow_model(script, self.optimizers)
        self.optimizer = Flow(script, [each.call for each in self.optimizers]).settle()
        self.loaders = [
            Loader(call, Flow(script, [call]).settle()) for call in script.calls("DataLoader")
        ]
        self.loops = _read_loops(script, self.backwards, self.trainers)
        for loader in self.loaders:
            loader.loops = [
                each
                for each in self.loops
                if isinstance(each, ast.For) and _iterates(each.iter, loader.flow)
            ]
        self.nexts = self._read_nexts()
        self.measured = self._share()

    def _share(self) -> list[ast.For]:
        """Mark the loaders that are divided; return the loops that only measure with them."""
        found: dict[ast.For, None] = {}
        for each in [*self.loaders, *(loader for loader, _ in self.nexts)]:
            each.is_shared = each.trains or any(each is loader for loader, _ in self.nexts)
        loops = [node for node in self.script.nodes
                 if isinstance(node, ast.For) and node not in self.loops]  # fmt: skip
        before = -1
        while before != len(found):
            before = len(found)
            for loop in loops:
                users = [each for each in self.loaders if _iterates(loop.iter, each.flow)]
                if any(each.is_shared for each in users):
                    found[loop] = None
            for loader in self.loaders:
                if any(_iterates(each.iter, loader.flow) for each in [*found, *self.loops]
                       if isinstance(each, ast.For)):  # fmt: skip
                    loader.is_shared = True
        return list(found)

    def _read_nexts(self) -> list[tuple[Loader, ast.Call]]:
        """Return the calls of `iter(loader)` outside of a `for`, and mark the loader as trained with."""
        found = []
        for call in self.script.calls("iter"):
            scope = self.script.scope(call)
            if scope not in self.trainers and scope is not self.script.tree:
                continue
            for loader in self.loaders:
                if call.args and loader.flow.holds(call.args[0]):
                    found.append((loader, call))
        return found

    def is_shared(self, node: ast.expr) -> bool:
        """Whether a loop over this expression takes batches of this rank's share."""
        return any(each.is_shared and _iterates(node, each.flow) for each in self.loaders)

    def shared_scopes(self) -> set[Scope]:
        """Return the functions that loop over this rank's share."""
        loops: list[ast.AST] = [
            *self.measured,
            *(each for loader in self.loaders for each in loader.loops),
        ]
        found = {self.script.scope(each) for each in loops}
        return found | {self.script.scope(call) for _, call in self.nexts}

    def step_scopes(self) -> list[Scope]:
        """Return the functions that see batches of this rank's share, or numbers of them."""
        found = {**dict.fromkeys(self.trainers), **dict.fromkeys(self.shared_scopes())}
        return sorted(found, key=lambda each: getattr(each, "lineno", 0))

    @property
    def losses(self) -> set[tuple[Scope, str]]:
        """The names that `backward` is called on, with the function they are in."""
        found = set()
        for call in self.backwards:
            for node in ast.walk(call.func):
                if isinstance(node, ast.Name) and not self._is_scaler(node):
                    found.add((self.script.scope(call), node.id))
            for node in call.args:
                found |= {(self.script.scope(call), n.id) for n in ast.walk(node)
                          if isinstance(n, ast.Name)}  # fmt: skip
        return found

    def feeds(self) -> set[tuple[Scope, str]]:
        """Return the losses, and the names that they are made of: gradients pass through these."""
        found = self.losses
        todo = list(found)
        for scope, name in todo:  # grows while it is walked
            for store in self.script.stores(scope, name):
                values = [value for target, value, _ in pairs(store)
                          if any(isinstance(n, ast.Name) and n.id == name for n in ast.walk(target))]  # fmt: skip
                for node in (each for value in values for each in ast.walk(value)):
                    if isinstance(node, ast.Name) and (scope, node.id) not in found:
                        found.add((scope, node.id))
                        todo.append((scope, node.id))
        return found

    def _is_scaler(self, node: ast.Name) -> bool:
        parent = self.script.parents.get(node)
        return isinstance(parent, ast.Attribute) and parent.attr == "scale"

    def batch_loops(self) -> list[Loop]:
        """Return the loops over batches: those over a loader, or the innermost around the step."""
        over: list[Loop] = []
        for loader in self.loaders:
            over += [each for each in loader.loops if each not in over]
        return over or [
            each
            for each in self.loops
            if not any(
                other is not each and self.script.within(other, each) for other in self.loops
            )
        ]

    def regions(self) -> list[ast.AST]:
        """Return what runs once for a training batch: bodies of loops, and functions they call."""
        found: list[ast.AST] = list(self.batch_loops())
        for call in self.backwards:
            scope = self.script.scope(call)
            if (
                isinstance(scope, Function)
                and not any(self.script.within(call, each) for each in found)
                and not any(self.script.within(each, scope) for each in found)
            ):
                found.append(scope)
        return found

    def owners(self) -> list[tuple[Scope, list[ast.stmt]]]:
        """Return the functions that bind the model to a name for the first time, with the lines."""
        found: dict[Scope, list[ast.stmt]] = {}
        kept: dict[Scope, list[ast.stmt]] = {}
        for node in self.script.nodes:
            if not isinstance(node, ast.Assign | ast.AnnAssign):
                continue
            for target, value, place in pairs(node):
                if self.model.holds(target) and not isinstance(target, ast.Subscript):
                    if not self.model.holds(value, place):
                        found.setdefault(self.script.scope(node), []).append(node)
                    elif isinstance(target, ast.Attribute):
                        kept.setdefault(self.script.scope(node), []).append(node)
        # An object that keeps the model, and may move it, wraps what it keeps.
        return [(scope, self._trained(scope, lines)) for scope, lines in (kept or found).items()]

    def starts(self, scope: Scope) -> list[ast.AST]:
        """Return what in a function begins to train: loops, and calls of functions that do."""
        found: list[ast.AST] = [*self.loops, *self.backwards]
        for each in self.trainers:
            if isinstance(each, Function):
                found += self.script.callers(each)
        return [each for each in found if self.script.scope(each) is scope]

    def _trained(self, scope: Scope, lines: list[ast.stmt]) -> list[ast.stmt]:
        """Leave out where the model is made anew after training, to be tried."""
        begin = [getattr(each, "lineno", 0) for each in self.starts(scope)]
        return [line for line in lines if any(line.lineno < each for each in begin)] or lines

    def made_again(self) -> ast.stmt | None:
        """Return the line that makes the model anew between two trainings."""
        for scope, lines in self.owners():
            for early, late in itertools.pairwise(lines):
                for start in self.starts(scope):
                    if early.lineno < getattr(start, "lineno", 0) < late.lineno:
                        if not self.script.within(late, start):
                            return late
        return None


def _iterates(node: ast.expr, flow: Flow) -> bool:
    """Whether a loop over this expression takes batches from the loader."""
    if flow.holds(node):
        return True
    if isinstance(node, ast.Call):
        values = [*node.args, *(each.value for each in node.keywords)]
        return any(_iterates(each, flow) for each in values)
    return False


def _read_optimizers(script: Script) -> list[Optimizer]:
    found = []
    for node in script.nodes:
        if not isinstance(node, ast.Call):
            continue
        name = script.dotted(node.func)
        is_torch = name.startswith("torch.optim.") and not any(x in name for x in _NO_OPTIMIZER)
        if not is_torch and not _is_stepped(script, node):
            continue
        roots = _roots(script, node)
        if not is_torch and not roots:
            continue
        if set(roots) == {"self"}:
            found += _made_by_model(script, node)
        else:
            found.append(Optimizer(node, _target(script, node), roots))
    return found


def _made_by_model(script: Script, call: ast.Call) -> list[Optimizer]:
    """`model.make_optimizer(…)`: what counts is the call of the method, and whose method it is."""
    scope = script.scope(call)
    outside = [
        Optimizer(each, _target(script, each), {text_of(each.func.value): each.func.value})
        for each in (script.callers(scope) if isinstance(scope, Function) else [])
        if isinstance(each.func, ast.Attribute) and text_of(each.func.value) != "self"
    ]
    return outside or [Optimizer(call, _target(script, call), {"self": call.func})]


def _is_stepped(script: Script, call: ast.Call) -> bool:
    """Whether what the call makes has `zero_grad` and `step` called on it."""
    name = _target(script, call)
    if not name or script.targets_of(call):
        return False
    last = name.split(".")[-1]
    used = {
        each.func.attr
        for each in script.methods("step", "zero_grad")
        if isinstance(each.func, ast.Attribute) and text_of(each.func.value).split(".")[-1] == last
    }
    return used == {"step", "zero_grad"}


def _target(script: Script, call: ast.Call) -> str:
    statement = script.statement(call)
    for target, value, _ in pairs(statement):
        if value is call or call in ast.walk(value):
            return text_of(target)
    return ""


def _roots(script: Script, call: ast.Call, depth: int = 4) -> dict[str, ast.expr]:
    """Return the models whose parameters an optimizer is given, by their text."""
    found: dict[str, ast.expr] = {}
    for value in [*call.args, *(each.value for each in call.keywords)]:
        for node in ast.walk(value):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                if node.func.attr in ("parameters", "named_parameters"):
                    root = _root(node.func.value)
                    found[text_of(root)] = root
        names = [node for node in ast.walk(value) if isinstance(node, ast.Name)]
        if not found and depth:
            for name in names:
                found |= _roots_of_name(script, name, depth)
    return found


def _roots_of_name(script: Script, name: ast.Name, depth: int) -> dict[str, ast.expr]:
    found: dict[str, ast.expr] = {}
    scope = script.scope(name)
    for node in script.own(scope):
        if isinstance(node, ast.Assign | ast.AnnAssign):
            for target, value, _ in pairs(node):
                if isinstance(target, ast.Name) and target.id == name.id:
                    fake = ast.Call(func=name, args=[value], keywords=[])
                    found |= _roots(script, fake, depth - 1)
    return found


def _root(node: ast.expr) -> ast.expr:
    """Return the model that a part belongs to: `model` of `model.head`, `self.model` of both."""
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        inner = node.func if isinstance(node, ast.Call) else node.value
        if isinstance(node, ast.Attribute) and isinstance(inner, ast.Name) and inner.id == "self":
            return node
        node = inner
    return node


def _follow_model(script: Script, optimizers: list[Optimizer]) -> Flow:
    flow = Flow(script)
    for optimizer in optimizers:
        for root in optimizer.roots.values():
            flow.add(script.scope(root), root)
    before = -1
    while before != len(flow.names):
        before = len(flow.names)
        flow.settle()
        for scope, name in list(flow.names):
            if isinstance(scope, Function) and script.is_parameter(scope, name):
                _follow_callers(script, flow, scope, name)
            elif scope is None:
                _follow_attribute(script, flow, name)
    return flow


def _follow_callers(script: Script, flow: Flow, function: Function, name: str) -> None:
    for call in script.callers(function):
        for value, parameter in script.arguments(call, function):
            if parameter == name and isinstance(value, ast.Name | ast.Attribute):
                flow.add(_home(script, value), value)


def _follow_attribute(script: Script, flow: Flow, attribute: str) -> None:
    """`self.model = model` in a class: what was given to it is the model too."""
    for node in script.nodes:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            for target, given, _ in pairs(node):
                if isinstance(target, ast.Attribute) and target.attr == attribute:
                    value = given
                    while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
                        if value.func.attr not in ("to", "cuda", "float", "train"):
                            break
                        value = value.func.value
                    if isinstance(value, ast.Name):
                        flow.add(_home(script, value), value)


def _home(script: Script, value: ast.expr) -> Scope:
    """Return the function whose name this is, going outwards where it is not bound."""
    scope = script.scope(value)
    if not isinstance(value, ast.Name) or isinstance(scope, ast.Module):
        return scope
    if script.is_parameter(scope, value.id):
        return scope
    for node in script.own(scope):
        if isinstance(node, ast.Name) and node.id == value.id and isinstance(node.ctx, ast.Store):
            return scope
    return script.scope(scope)


def _read_trainers(script: Script, backwards: list[ast.Call]) -> list[Scope]:
    """Return the functions that train, and those that call them."""
    found: list[Scope] = list(dict.fromkeys(script.scope(each) for each in backwards))
    for scope in found:  # grows while it is walked
        if isinstance(scope, Function):
            for call in script.callers(scope):
                if script.scope(call) not in found:
                    found.append(script.scope(call))
    return found


def _read_loops(script: Script, backwards: list[ast.Call], trainers: list[Scope]) -> list[Loop]:
    """Return the loops around a training step, in whatever function they are."""
    steps: list[ast.AST] = list(backwards)
    for scope in trainers:
        if isinstance(scope, Function):
            steps.extend(script.callers(scope))
    found: dict[Loop, None] = {}
    for step in steps:
        for node in script.above(step):
            if isinstance(node, Function):
                break
            if isinstance(node, Loop):
                found[node] = None
    return list(found)
