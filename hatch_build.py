"""Compiles what is written in C, where there is a compiler; without one the build goes on.

So it does without the headers of libjpeg-turbo, which one of the sources needs.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

# Each has a twin in Python.
FOLDER = Path("src/stoker")
# What else they need.
LIBRARIES = {"_jpeg.c": ["-ljpeg"]}
# Made with the stable interface: for every Python, as they run inside the user's.
STABLE = {"_gate.c", "_opens.c"}


class CustomBuildHook(BuildHookInterface):  # type: ignore[misc,type-arg,unused-ignore]
    """Adds compiled modules to wheels, if they can be made."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile beside the sources, and make the wheel one of this Python and this machine."""
        if self.target_name != "wheel" or os.environ.get("STOKER_NO_COMPILER"):
            return
        root = Path(self.root)
        for source in sorted((root / FOLDER).rglob("_*.c")):
            is_stable = source.name in STABLE
            suffix = ".abi3.so" if is_stable else sysconfig.get_config_var("EXT_SUFFIX")
            made = source.with_name(source.stem + suffix)
            if _compile(source, made):
                build_data["pure_python"] = False
                build_data["infer_tag"] = True
                build_data["artifacts"].append(str(made.relative_to(root)))


def _compile(source: Path, made: Path) -> bool:
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    include = sysconfig.get_paths()["include"]
    # Under another name first: a program may have the old one mapped.
    temporary = made.with_name(f".{made.name}.{os.getpid()}")
    words = [
        *compiler,
        "-O3",
        "-shared",
        "-fPIC",
        "-pthread",
        f"-I{include}",
        str(source),
        "-o",
        str(temporary),
        *LIBRARIES.get(source.name, ()),
    ]
    try:
        subprocess.run(words, check=True, capture_output=True, text=True)
        temporary.replace(made)
    except (OSError, subprocess.CalledProcessError) as error:
        why = getattr(error, "stderr", None) or str(error)
        print(f"stoker: built without {source.name}, which is slower: {why}", file=sys.stderr)
        temporary.unlink(missing_ok=True)
        return False
    return True
