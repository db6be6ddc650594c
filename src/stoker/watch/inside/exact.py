"""Exact line counts, by line_profiler, for `stoker run --lines`.

line_profiler counts the lines of functions that it is given. To have it count a whole program
unchanged, module code too, the code of each of the user's files is registered before it runs.
As a program, this file runs a script or a module as Python would.
"""

from __future__ import annotations

import os
import sys
import types

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .process import Watched

MAX_TOLD = 300


class Exact:
    """The lines of this process, counted."""

    def __init__(self, profiler: Any) -> None:
        self._profiler = profiler
        self._pid = os.getpid()

    def registered(self, code: types.CodeType) -> types.CodeType:
        """Return the code, and all code within it, in the form that is counted."""
        inner = tuple(
            self.registered(each) if isinstance(each, types.CodeType) else each
            for each in code.co_consts
        )
        cells = tuple(types.CellType() for _ in code.co_freevars)
        function = types.FunctionType(code.replace(co_consts=inner), {}, None, None, cells)
        self._profiler.add_function(function)
        return function.__code__

    def told(self) -> list[list[object]]:
        """Return the heaviest lines: file, function, line, hits, seconds."""
        stats = self._profiler.get_stats()
        rows: list[list[object]] = []
        for (file, _, function), lines in stats.timings.items():
            for line, hits, ticks in lines:
                rows.append([os.path.abspath(file), function, line, hits, ticks * stats.unit])
        rows.sort(key=lambda row: row[4], reverse=True)  # type: ignore[arg-type,return-value]
        return [[*row[:4], round(float(row[4]), 6)] for row in rows[:MAX_TOLD]]  # type: ignore[arg-type]

    def start(self) -> None:
        """Count from here on."""
        self._profiler.enable_by_count()

    def stop(self) -> None:
        """Count no more; a forked child leaves its parent's counter alone."""
        if self._pid == os.getpid():
            self._profiler.disable_by_count()


def start_exact(watched: Watched) -> Exact | None:
    """Return the counter of this process, with the user's modules registered as they come."""
    try:
        from line_profiler import LineProfiler  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        watched.notes.append(
            "lines were not counted: line_profiler is not in this environment "
            "(pip install line_profiler)"
        )
        return None
    exact = Exact(LineProfiler())
    _register_imports(exact)
    exact.start()
    return exact


def _register_imports(exact: Exact) -> None:
    from importlib.machinery import SourceFileLoader

    from .lines import is_users

    get_code = SourceFileLoader.get_code

    def get_registered(self: Any, name: str) -> Any:
        code = get_code(self, name)
        return exact.registered(code) if code is not None and is_users(code.co_filename) else code

    SourceFileLoader.get_code = get_registered  # type: ignore[method-assign,assignment]


def main() -> None:
    """Run the script, or the module after -m, that the command line names, and count its lines."""
    words = sys.argv[1:]
    is_module = words[0] == "-m"
    space, code = _find_module(words[1]) if is_module else _find_script(words[0])
    sys.argv[:] = [space["__file__"], *words[2:]] if is_module else words
    module = types.ModuleType("__main__")
    module.__annotations__ = {}  # as Python makes it
    vars(module).update(space, __builtins__=__builtins__)
    # Where nothing can be recorded, the program is not watched, and runs all the same.
    process = sys.modules.get("_stoker_inside.process")
    watched = None if process is None else process.current()
    if watched is not None and watched.exact is not None:
        code = watched.exact.registered(code)
    sys.modules["__main__"] = module
    exec(code, vars(module))


def _find_module(name: str) -> tuple[dict[str, Any], types.CodeType]:
    import runpy

    _replace_first_path(os.getcwd())
    return _find_as_python(runpy._get_module_details, name)  # type: ignore[attr-defined]


def _find_script(word: str) -> tuple[dict[str, Any], types.CodeType]:
    import pkgutil
    import runpy
    import tokenize
    from importlib.machinery import SourceFileLoader, SourcelessFileLoader

    path = os.path.join(os.getcwd(), word)
    _replace_first_path(os.path.dirname(os.path.realpath(path)))
    if pkgutil.get_importer(path) is not None:  # a folder or an archive with a __main__.py
        sys.path[0 : 0 if _is_path_safe() else 1] = [path]
        return _find_as_python(runpy._get_main_module_details)  # type: ignore[attr-defined]
    with open(path, "rb") as binary:
        code = pkgutil.read_code(binary)
    loader = (SourceFileLoader if code is None else SourcelessFileLoader)("__main__", path)
    if code is None:
        with tokenize.open(path) as file:
            code = compile(file.read(), path, "exec", dont_inherit=True)
    space = {"__file__": path, "__loader__": loader}
    return {**space, "__cached__": None, "__package__": None, "__spec__": None}, code


def _find_as_python(find: Any, *names: str) -> tuple[dict[str, Any], types.CodeType]:
    """Find a module's code with the function with which Python itself does."""
    import runpy

    error: Any = runpy._Error  # type: ignore[attr-defined]
    try:
        _, spec, code = find(*names, error)
    except error as missing:
        sys.exit(f"{sys.executable}: {missing}")
    space = {"__file__": spec.origin, "__loader__": spec.loader}
    return {**space, "__cached__": spec.cached, "__package__": spec.parent, "__spec__": spec}, code


def _replace_first_path(folder: str) -> None:
    if not _is_path_safe():
        sys.path[0] = folder


def _is_path_safe() -> bool:
    """Say whether Python puts no folder of the script's before the others (-P, from 3.11 on)."""
    return bool(getattr(sys.flags, "safe_path", False))


if __name__ == "__main__":
    try:
        main()
    except BaseException as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        error.__traceback__ = trace
        raise
