"""What is written in C, built for the tests, where there is a compiler."""

from __future__ import annotations

import importlib.util
import shlex
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import lru_cache
from pathlib import Path
from types import ModuleType

import pytest

from stoker.data.pictures import decode, picture

FOLDER = Path(__file__).parent.parent / "src/stoker"
LIBRARIES = {"_jpeg": ["-ljpeg"]}
# What is said of headers and libraries that are not installed, and what they are.
ABSENT = {"Python.h: No such file": "Python", "jpeglib.h: No such file": "libjpeg-turbo"}


@lru_cache
def compiled(name: str, *options: str) -> ModuleType:
    """Build and import a module; skip the test if that cannot be done here."""
    compiler = shlex.split(sysconfig.get_config_var("CC") or "cc")[0]
    with tempfile.TemporaryDirectory() as folder:
        made, source = Path(folder) / f"{name}.so", next(FOLDER.rglob(f"{name}.c"))
        include = sysconfig.get_paths()["include"]
        words = [
            compiler,
            "-O1",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-shared",
            "-fPIC",
            "-pthread",
            f"-I{include}",
        ]
        try:
            words += [*options, str(source), "-o", str(made), *LIBRARIES.get(name, ())]
            subprocess.run(words, check=True, capture_output=True, text=True)
        except FileNotFoundError:
            pytest.skip("no compiler")
        except subprocess.CalledProcessError as error:
            for said, what in ABSENT.items():
                if said in error.stderr:
                    pytest.skip(f"no headers of {what}")
            raise AssertionError(error.stderr) from None
        spec = importlib.util.spec_from_file_location(name, made)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module


@contextmanager
def _decoded_by(name: str, module: ModuleType | None) -> Iterator[None]:
    known = (decode.picture_decoder, picture.cropper)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, name, module)
        for each in known:
            each.cache_clear()
        yield
    for each in known:
        each.cache_clear()


def jpegs_by(module: ModuleType | None) -> AbstractContextManager[None]:
    """Have JPEGs decoded by this module; by other libraries if it is None."""
    return _decoded_by(decode.COMPILED, module)


def pngs_by(module: ModuleType | None) -> AbstractContextManager[None]:
    """Have PNGs decoded with this module; by other libraries if it is None."""
    return _decoded_by(decode.COMPILED_PNG, module)
