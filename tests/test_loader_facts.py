"""What is noted of a loader: the folder that its data set reads, if it says so."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from stoker.watch.inside.loader_facts import find_root, find_trainer, loader_facts


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


class Own:
    """As people write them."""

    def __init__(self, **attributes: object) -> None:
        vars(self).update(attributes)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("cat/1.jpg", "cat/2.jpg", "dog/1.jpg"):
        path = tmp_path / "images" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path / "images"


def test_a_folder_is_known_by_its_whole_path(folder: Path) -> None:
    for given in (folder, "images", "images/"):
        assert find_root(Folder(given)) == str(folder)
    assert find_root(Own(transform=None, img_dir="images")) == str(folder)


def test_a_part_is_of_the_same_folder(folder: Path) -> None:
    assert find_root(Part(Part(Folder("images")))) == str(folder)


def test_files_are_in_the_folder_that_they_share(folder: Path) -> None:
    files = sorted(folder.glob("*/*.jpg"))
    assert find_root(Own(paths=files)) == str(folder)
    assert find_root(Own(samples=[(str(each), 1) for each in files])) == str(folder)
    assert find_root(Own(files=files[:2])) == str(folder / "cat")


def test_others_have_no_folder() -> None:
    endless = Part(None)
    endless.dataset = endless
    odd = (
        Own(paths=[]),
        Own(paths=[7]),
        Own(paths=[()]),
        Own(samples=[(1, 2)]),
        Own(path="no\0ne"),
    )
    for dataset in (
        None,
        3,
        object(),
        Odd(),
        Folder(None),
        Folder(7),
        Folder("none"),
        endless,
        *odd,
    ):
        assert find_root(dataset) is None


class Library:
    """Has a length that is not the user's doing; so have those that are made of it."""

    exec(compile("def __len__(self): return 12", "/usr/lib/python3/dist-packages/torch.py", "exec"))


class Loader(Library):
    """As torch's, with what people may give it."""

    def __init__(self, batch_sampler: object = None, sampler: object = None, kind: int = 0) -> None:
        self.dataset: list[int] = []
        self.batch_sampler, self.sampler, self._dataset_kind = batch_sampler, sampler, kind


class Batches(Library):
    """As torch's batches of what a sampler says."""

    def __init__(self, sampler: object) -> None:
        self.sampler = sampler


class Drawn:
    """As people write samplers: to count its batches it has to draw them."""

    def __len__(self) -> int:
        raise RuntimeError("drawn")


@pytest.mark.parametrize(
    "loader",
    [
        Loader(batch_sampler=Drawn()),
        Loader(batch_sampler=Batches(Drawn())),
        Loader(sampler=Drawn()),
        Loader(kind=1),
    ],
)
def test_code_of_the_users_own_is_not_asked_how_many_batches_there_are(loader: Loader) -> None:
    assert loader_facts(loader)["batches"] is None


def test_a_loader_knows_its_batches_where_a_library_counts_them() -> None:
    for loader in (Loader(), Loader(Batches(Library())), Loader(sampler=Library())):
        assert loader_facts(loader)["batches"] == 12


def test_samplers_that_have_no_length_leave_it_unknown() -> None:
    assert (
        loader_facts(type("Endless", (), {"dataset": [], "batch_sampler": None})())["batches"]
        is None
    )


@pytest.mark.parametrize(
    ("module", "trainer"),
    [
        ("transformers.trainer", "transformers"),
        ("lightning.pytorch.trainer.trainer", "lightning"),
        ("pytorch_lightning.trainer.trainer", "lightning"),
        ("train", None),
    ],
)
def test_a_loader_that_a_trainer_reads_is_told_to_be_its(module: str, trainer: str | None) -> None:
    library = {"__name__": module, "find": lambda: find_trainer(sys._getframe())}
    exec("def fit():\n    return find()", library)
    assert eval("fit()", library) == trainer
