"""Actions run once, after the module that they wait for; the user's imports are as without them."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.util
import sys
import traceback
import zipfile
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from stoker.watch.inside.imports import Waiting


class Place:
    """A folder from which modules of any name are imported, and what happened to them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.errors: list[tuple[str, Exception]] = []
        self.seen: list[Any] = []
        self.waiting = Waiting(lambda name, error: self.errors.append((name, error)))

    def write(self, name: str, text: str = "value = 1\n") -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        importlib.invalidate_caches()

    def wait_for(self, name: str) -> None:
        self.waiting.when_imported(name, self.seen.append)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    place = Place(tmp_path)
    before = set(sys.modules)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(sys, "meta_path", [place.waiting, *sys.meta_path])
    yield place
    for name in set(sys.modules) - before:
        del sys.modules[name]


# -- when actions run ------------------------------------------------------------------


def test_an_action_runs_once_when_the_module_is_there(place: Place) -> None:
    place.write("fire.py", "value = 1\n")
    place.waiting.when_imported("fire", lambda module: place.seen.append(module.value))
    assert place.seen == []
    importlib.import_module("fire")
    importlib.import_module("fire")
    assert place.seen == [1]
    assert place.errors == []


def test_several_actions_run_in_their_order(place: Place) -> None:
    place.write("fire.py")
    place.waiting.when_imported("fire", lambda _: place.seen.append("first"))
    place.waiting.when_imported("fire", lambda _: place.seen.append("second"))
    importlib.import_module("fire")
    assert place.seen == ["first", "second"]


def test_an_action_for_what_is_there_already_runs_now(place: Place) -> None:
    place.write("fire.py")
    module = importlib.import_module("fire")
    place.wait_for("fire")
    assert place.seen == [module]


def test_a_module_that_is_just_being_imported_is_waited_for(place: Place) -> None:
    """As a framework is, when one of its own modules is what its hooks waited for."""
    place.write("fire/__init__.py", "from fire import coal\nvalue = 1\n")
    place.write("fire/coal.py")
    place.wait_for("fire")
    found = []

    def action(_: ModuleType) -> None:
        place.waiting.when_imported("fire", lambda package: found.append(package.value))
        assert found == []

    place.waiting.when_imported("fire.coal", action)
    importlib.import_module("fire")
    assert found == [1]


def test_packages_and_their_modules_each_have_their_time(place: Place) -> None:
    place.write("fire/__init__.py")
    place.write("fire/wood/__init__.py")
    place.write("fire/wood/ash.py")
    for name in ("fire.wood.ash", "fire", "fire.wood"):
        place.wait_for(name)
    importlib.import_module("fire")
    assert [each.__name__ for each in place.seen] == ["fire"]
    importlib.import_module("fire.wood.ash")
    assert [each.__name__ for each in place.seen] == ["fire", "fire.wood", "fire.wood.ash"]


def test_a_name_that_is_nowhere_is_not_found_as_without_us(place: Place) -> None:
    place.wait_for("fire")
    with pytest.raises(ModuleNotFoundError, match="No module named 'fire'"):
        importlib.import_module("fire")
    place.write("fire.py")
    importlib.import_module("fire")
    assert len(place.seen) == 1


def test_a_reload_is_the_users_and_runs_no_action_again(place: Place) -> None:
    place.write("fire.py")
    place.wait_for("fire")
    module = importlib.import_module("fire")
    place.write("fire.py", "value = 22\n")
    assert importlib.reload(module).value == 22
    assert len(place.seen) == 1


# -- what the user sees of it ----------------------------------------------------------


def test_loader_and_spec_are_the_modules_own(place: Place) -> None:
    place.write("fire.py")
    place.write("coal.py")
    place.wait_for("fire")
    watched, other = importlib.import_module("fire"), importlib.import_module("coal")
    assert watched.__spec__ is not None
    assert other.__spec__ is not None
    assert type(watched.__loader__) is type(other.__loader__)
    assert watched.__spec__.loader is watched.__loader__
    assert set(vars(watched.__loader__)) == set(vars(other.__loader__))
    assert {type(each) for each in vars(watched).values()} == {
        type(each) for each in vars(other).values()
    }


def test_an_action_that_fails_is_told_and_the_import_is_not_disturbed(place: Place) -> None:
    place.write("fire.py")

    def fail(module: ModuleType) -> None:
        raise AttributeError("no such function any more")

    place.waiting.when_imported("fire", fail)
    place.wait_for("fire")
    assert importlib.import_module("fire").value == 1
    assert [(name, str(error)) for name, error in place.errors] == [
        ("fire", "no such function any more")
    ]
    assert len(place.seen) == 1


@pytest.mark.parametrize("error", ["ImportError('libfire.so.1')", "SystemExit(3)", "ValueError(7)"])
def test_a_module_that_fails_raises_its_own_error_and_may_come_later(
    error: str, place: Place
) -> None:
    place.write("fire.py", f"raise {error}\n")
    place.wait_for("fire")
    with pytest.raises((Exception, SystemExit)) as caught:
        importlib.import_module("fire")
    assert repr(caught.value) == error
    assert not place.seen
    assert not place.errors
    assert "fire" not in sys.modules
    place.write("fire.py", "value = 'repaired'\n")
    assert importlib.import_module("fire").value == "repaired"
    assert len(place.seen) == 1


@pytest.mark.skipif(sys.version_info < (3, 11), reason="a traceback cannot be mended before 3.11")
@pytest.mark.parametrize("text", ["raise ValueError(7)\n", "raise ImportError\n", "def broken(:\n"])
def test_the_traceback_of_a_module_that_fails_is_as_without_us(text: str, place: Place) -> None:
    def failure() -> list[str]:
        with pytest.raises((ValueError, ImportError, SyntaxError)) as caught:
            importlib.import_module("fire")
        return [f"{each.filename}:{each.lineno}" for each in traceback.extract_tb(caught.tb)]

    place.write("fire.py", text)
    without = failure()
    place.wait_for("fire")
    assert failure() == without


# -- looking without importing ---------------------------------------------------------


def test_looking_for_a_module_runs_nothing_and_a_later_import_everything(place: Place) -> None:
    """As libraries do that ask whether a framework is installed."""
    place.write("fire.py")
    place.wait_for("fire")
    for _ in range(2):
        spec = importlib.util.find_spec("fire")
        assert spec is not None
        assert (spec.name, spec.origin) == ("fire", str(place.folder / "fire.py"))
    assert place.seen == []
    module = importlib.import_module("fire")
    assert place.seen == [module]
    assert place.errors == []


def test_what_was_found_can_be_run_by_hand(place: Place) -> None:
    place.write("fire.py")
    place.wait_for("fire")
    spec = importlib.util.find_spec("fire")
    assert spec is not None
    assert spec.loader is not None
    first, second = (importlib.util.module_from_spec(spec) for _ in range(2))
    spec.loader.exec_module(first)
    spec.loader.exec_module(second)
    assert place.seen == [first]
    assert "exec_module" not in vars(spec.loader)


def test_a_lazy_loader_runs_the_action_when_the_module_is_used(place: Place) -> None:
    place.write("fire.py")
    place.wait_for("fire")
    spec = importlib.util.find_spec("fire")
    assert spec is not None
    assert spec.loader is not None
    loader = importlib.util.LazyLoader(spec.loader)
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    assert place.seen == []
    assert module.value == 1
    assert place.seen == [module]


# -- other loaders ---------------------------------------------------------------------


def test_a_loader_that_many_modules_share_is_left_whole(place: Place, tmp_path: Path) -> None:
    """The importer of a zip file is one object for all that is in it."""
    with zipfile.ZipFile(tmp_path / "both.zip", "w") as file:
        file.writestr("fire.py", "value = 1\n")
        file.writestr("coal.py", "value = 2\n")
    sys.path.insert(0, str(tmp_path / "both.zip"))
    place.wait_for("fire")
    for _ in range(2):
        assert importlib.util.find_spec("fire") is not None
    assert importlib.import_module("coal").value == 2
    assert place.seen == []
    module = importlib.import_module("fire")
    assert place.seen == [module]
    assert "exec_module" not in vars(module.__loader__)


class Builtin(importlib.abc.Loader):
    """A loader that is a class, as those of frozen modules are."""

    @classmethod
    def find_spec(cls, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(name, cls) if name in ("fire", "coal") else None  # type: ignore[arg-type]

    @classmethod
    def create_module(cls, spec: ModuleSpec) -> None:
        return None

    @classmethod
    def exec_module(cls, module: ModuleType) -> None:
        module.value = 3  # type: ignore[attr-defined]


class Slots(Builtin):
    """A loader to which nothing can be added."""

    __slots__ = ()

    @classmethod
    def find_spec(cls, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(name, cls()) if name in ("fire", "coal") else None

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(name)


@pytest.mark.parametrize("finder", [Builtin, Slots])
def test_a_loader_that_cannot_be_followed_is_told_and_works(finder: Any, place: Place) -> None:
    sys.meta_path.insert(1, finder)
    place.wait_for("fire")
    assert importlib.import_module("fire").value == 3
    assert importlib.import_module("coal").value == 3
    assert [name for name, _ in place.errors] == ["fire"]
    assert place.seen == []


def test_a_folder_without_code_has_no_loader_to_follow(place: Place) -> None:
    (place.folder / "fire").mkdir()
    place.wait_for("fire")
    assert importlib.import_module("fire").__path__
    assert [name for name, _ in place.errors] == ["fire"]
