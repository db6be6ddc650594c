"""Runs every function that is called `try_…`, each with a folder of its own; prints how it went."""

import json
import traceback

import numpy
from PIL import Image

from stoker.data.verify import verify
from stoker.errors import StokerError


def made(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def make_pictures(folder):
    """Make three pictures of each of two classes, and return where they are."""
    paths = [folder / kind / f"{at}.jpg" for kind in ("cat", "dog") for at in range(3)]
    for at, path in enumerate(paths):
        pixels = numpy.random.default_rng(at).integers(0, 255, (6, 8, 3), dtype="uint8")
        Image.fromarray(pixels).save(made(path))
    return paths


def refused(words, pack):
    try:
        pack()
        said = "it was packed"
    except StokerError as error:
        said = str(error)
    assert words in said, said


def run(names, work):
    said = {}
    for name, function in names.items():
        if not name.startswith("try_"):
            continue
        out = made(work / "out" / name)
        try:
            function(out)
            damaged = [list(verify(each.parent)) for each in out.rglob("index.stoker")]
            said[name] = "" if not any(damaged) else str(damaged)
        except Exception:
            said[name] = traceback.format_exc()
    print(json.dumps(said))
