"""What is noted of a loader: the folder that its data set reads, if it says so."""

from __future__ import annotations

from pathlib import Path

from stoker.watch.inside.pytorch import _root


class Folder:
    """As torchvision's data sets of folders."""

    def __init__(self, root: object) -> None:
        self.root = root


class Part:
    """As torch's Subset."""

    def __init__(self, dataset: object) -> None:
        self.dataset = dataset


class Odd:
    """A property may do anything: it is not asked."""

    @property
    def root(self) -> str:
        raise RuntimeError("asked")


def test_a_folder_is_known_by_its_whole_path(tmp_path: Path) -> None:
    assert _root(Folder(tmp_path)) == str(tmp_path)
    assert _root(Folder("images")) == str(Path("images").absolute())


def test_a_part_is_of_the_same_folder() -> None:
    assert _root(Part(Part(Folder("/data")))) == "/data"


def test_others_have_no_folder() -> None:
    endless = Part(None)
    endless.dataset = endless
    for dataset in (None, 3, object(), Odd(), Folder(None), Folder(7), endless):
        assert _root(dataset) is None
