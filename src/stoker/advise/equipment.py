"""What Stoker finds on this machine, and how to get what is missing."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from stoker import __version__
from stoker.cluster.layers import file_layers, fold
from stoker.cluster.load import names
from stoker.data import gather, plain
from stoker.data.mounts import NETWORK_FILE_SYSTEMS, file_system, read_mounts
from stoker.data.pictures.decode import COMPILED
from stoker.engine.submit import cluster_name
from stoker.errors import StokerError
from stoker.units import plural
from stoker.watch.gpus import open_gpus

SLURM = ("sbatch", "squeue", "sacct", "scontrol", "sinfo", "scancel")
# Where sites put the disk of a node.
DISKS = ("LOCAL_SCRATCH", "SLURM_TMPDIR", "TMPDIR")
# What a library is for, by the name that Python imports and that pip installs.
LIBRARIES = (
    ("numpy", "numpy", "arrays: .npy, images, samples of fixed shape"),
    ("torch", "torch", "tensors in batches, pinned memory"),
    ("torchvision", "torchvision", "JPEG and PNG, JPEG on the GPU"),
    ("simplejpeg", "simplejpeg", "JPEG, where Stoker was built without it"),
    ("PIL", "pillow", "images"),
    ("h5py", "h5py", "HDF5"),
    ("lmdb", "lmdb", "LMDB"),
    ("google_crc32c", "google-crc32c", "TFRecord, written quickly"),
)
# A library on a cold shared disk takes its time; one that never comes must not stop us.
IMPORT_S = 120.0
# Each is imported, not looked for: one that is broken is missing. Not in our process, where a
# library that crashes would take us along.
ASK = """
import importlib, json, sys
for name in sys.argv[1:]:
    try:
        found = importlib.import_module(name)
        told = {"version": str(getattr(found, "__version__", ""))}
        if name == "torch":
            told["cuda"] = found.version.cuda or found.version.hip
            told["gpus"] = found.cuda.device_count() if found.cuda.is_available() else 0
    except BaseException as error:
        told = {"error": f"{type(error).__name__}: {error}"}
        if isinstance(error, ModuleNotFoundError) and error.name == name:
            told["absent"] = True
    print(json.dumps([name, told]), flush=True)
"""


class Item(NamedTuple):
    """One thing that is there or not. `fix` says how to get it."""

    name: str
    is_there: bool
    what: str
    fix: str = ""


Answers = Mapping[str, Mapping[str, object]]


def look(
    environ: Mapping[str, str] = os.environ, ask: Callable[[], Answers] | None = None
) -> Iterator[Item]:
    """Yield everything that Stoker may use on this machine."""
    yield Item("Stoker", True, f"{__version__}, {Path(__file__).parents[1]}")
    yield Item("Python", True, f"{sys.version.split()[0]}, {sys.executable}")
    yield _compiled()
    yield _compiled_jpeg()
    yield _gpus(environ)
    yield from _slurm()
    yield _lfs()
    yield _local_disk(environ)
    yield from _libraries((ask or ask_libraries)())


def _compiled() -> Item:
    if gather.engine is not plain:
        return Item("compiled part", True, "batches are gathered in C")
    fix = "install a C compiler (cc), then pip install --force-reinstall --no-deps stoker"
    return Item("compiled part", False, "batches are gathered in Python: slower", fix)


def _compiled_jpeg() -> Item:
    try:
        import_module(COMPILED)
    except ImportError:
        fix = (
            "install the headers of libjpeg-turbo (libjpeg62-turbo-dev, libjpeg-turbo-devel),"
            " then pip install --force-reinstall --no-deps stoker"
        )
        return Item("JPEG in C", False, "pictures are decoded by other libraries: slower", fix)
    return Item("JPEG in C", True, "pictures are decoded and cropped in C")


def _gpus(environ: Mapping[str, str]) -> Item:
    notes: list[str] = []
    gpus = open_gpus(environ, notes.append)
    try:
        found = [each.name for each in gpus.gpus]
    finally:
        gpus.close()
    if found:
        kinds = ", ".join(f"{found.count(each)} × {each}" for each in dict.fromkeys(found))
        return Item("GPUs", True, kinds)
    if notes:
        return Item(
            "GPUs", False, notes[0], "nvidia-smi, or amd-smi, tells whether the driver works"
        )
    return Item("GPUs", False, "none here", "on a cluster, look on a GPU node: srun stoker doctor")


def _slurm() -> Iterator[Item]:
    missing = [each for each in SLURM if not shutil.which(each)]
    if missing:
        fix = "log in to a cluster, or module load slurm; stoker run works without it"
        what = "not here" if len(missing) == len(SLURM) else f"no {', '.join(missing)}"
        yield Item("Slurm", False, what, fix)
        return
    yield Item("Slurm", True, "its commands are on PATH")
    try:
        name = cluster_name() or ""
    except StokerError as error:
        yield Item("cluster", False, error.why, error.fix)
        return
    if fold(name) in names(file_layers(Path.cwd())):
        yield Item("cluster", True, f"{name}: stoker cluster show {fold(name)}")
    else:
        yield Item(
            "cluster", False, f"{name or 'it'} has no profile", "stoker cluster detect --save"
        )


def _lfs() -> Item:
    places = [each.place for each in read_mounts() if each.kind == "lustre"]
    if not places:
        return Item("Lustre", True, "none is mounted: lfs is not needed")
    if shutil.which("lfs"):
        return Item("Lustre", True, f"{', '.join(places)}, with lfs")
    fix = "ask the site for lustre-client; until then nothing is striped, and no quota is read"
    return Item("Lustre", False, f"{', '.join(places)}, without lfs", fix)


def _local_disk(environ: Mapping[str, str]) -> Item:
    variable = next((each for each in DISKS if environ.get(each)), None)
    place = Path(environ[variable] if variable else "/tmp")
    named = f"${variable} = {place}" if variable else str(place)
    try:
        found = os.statvfs(place)
    except OSError as error:
        fix = f"unset {variable}, or mkdir {place}"
        return Item("local disk", False, f"{named}: {error.strerror}", fix)
    kind, free = file_system(place), found.f_bavail * found.f_frsize
    what = f"{named}, {kind}, {free / 1e9:,.0f} GB free"
    if kind in NETWORK_FILE_SYSTEMS:
        return Item("local disk", False, what, "set TMPDIR to a disk of the node itself")
    if kind == "tmpfs":
        return Item("local disk", True, f"{what}; it takes from memory")
    return Item("local disk", True, what)


def ask_libraries(python: str = sys.executable) -> Answers:
    """Import each library in a process of its own, and return what it tells."""
    words = [python, "-c", ASK, *(name for name, _, _ in LIBRARIES)]
    output = b""
    try:
        output = subprocess.run(
            words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=IMPORT_S, check=False
        ).stdout
    except subprocess.TimeoutExpired as late:
        output = late.stdout or b""
    except OSError:
        pass
    told = {}
    for line in output.decode(errors="replace").splitlines():
        # Libraries print things of their own.
        if line.startswith('["') and line.endswith("}]"):
            name, answer = json.loads(line)
            told[name] = answer
    return told


def _libraries(told: Answers) -> Iterator[Item]:
    for name, package, purpose in LIBRARIES:
        answer = told.get(name, {"error": "importing it ends the process, or never ends"})
        install = f"pip install {package}"
        if "version" in answer:
            more = _cuda(answer) if name == "torch" else ""
            yield Item(package, True, f"{answer['version']}{more}: {purpose}")
        elif answer.get("absent"):
            yield Item(package, False, f"for {purpose}", install)
        else:
            why = str(answer.get("error", "")).splitlines()[0][:200]
            yield Item(package, False, why, f"{install} --force-reinstall; for {purpose}")


def _cuda(answer: Mapping[str, object]) -> str:
    if not answer.get("cuda"):
        return ", built without CUDA"
    return f", CUDA {answer['cuda']}, sees {plural(int(str(answer['gpus'])), 'GPU')}"
