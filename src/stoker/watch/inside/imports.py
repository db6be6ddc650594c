"""Actions that wait until the user's program imports a module.

A finder in front of the others looks for the names it waits for and lets the others find
them; the module's own loader stays in place, with one call added after it has run.
"""

from __future__ import annotations

import sys

from .hooks import drop_frame

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any


class Waiting:
    """A finder that finds nothing itself."""

    def __init__(self, on_error: Callable[[str, Exception], None]) -> None:
        self._actions: dict[str, list[Callable[[Any], None]]] = {}
        self._on_error = on_error

    def when_imported(self, name: str, action: Callable[[Any], None]) -> None:
        """Call `action(module)` once the module has run, or now if it already has."""
        module = sys.modules.get(name)
        if module is not None and not _is_running(module):
            self._act(name, action, module)
        else:
            self._actions.setdefault(name, []).append(action)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Ask the other finders, and add our call after the module that they find."""
        if name not in self._actions:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            if finder is self or find is None:
                continue
            try:
                spec = find(name, path, target)
            except BaseException as error:
                drop_frame(error)
                raise
            if spec is not None:
                self._follow(spec.loader, name)
                return spec
        return None

    def _follow(self, loader: Any, name: str) -> None:
        try:
            run = loader.exec_module
            if isinstance(loader, type):
                raise TypeError("its loader is a class, which other modules share")
            if getattr(run, "__module__", None) == __name__:
                return  # it was looked for before, and not imported

            def exec_module(module: ModuleType) -> None:
                del loader.exec_module
                # Some loaders are shared: this need not be the module that was looked for.
                name = module.__name__
                try:
                    run(module)
                except BaseException as error:
                    drop_frame(error)
                    raise
                for action in self._actions.pop(name, []):
                    self._act(name, action, module)

            loader.exec_module = exec_module
        except Exception as error:  # a loader of another kind: the module is imported unwatched
            self._on_error(name, error)

    def _act(self, name: str, action: Callable[[Any], None], module: Any) -> None:
        try:
            action(module)
        except Exception as error:  # a framework that has changed must not stop the user
            self._on_error(name, error)


def _is_running(module: Any) -> bool:
    spec = getattr(module, "__spec__", None)
    return bool(getattr(spec, "_initializing", False))
