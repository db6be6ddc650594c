"""Packs data sets of Hugging Face into the folder that is named, and compares what was packed."""

import datetime
import json
import sys
import zipfile
from pathlib import Path

import numpy
import objects_tried
from datasets import (
    Array2D,
    Audio,
    ClassLabel,
    Dataset,
    Features,
    IterableDataset,
    List,
    Value,
    disable_progress_bars,
    load_dataset,
)
from datasets import Image as Picture
from torch.utils.data import Subset

import stoker

WORK = Path(sys.argv[1])
PATHS = objects_tried.make_pictures(WORK / "pictures")
FILES = [path.read_bytes() for path in PATHS]
disable_progress_bars()


def load(*what, **options):
    return load_dataset(*what, split="train", cache_dir=str(WORK / "cache"), **options)


def pictures():
    return load("imagefolder", data_dir=str(WORK / "pictures"))


def same_files(out, part="image.jpg", files=FILES):
    data = stoker.open(out, parts=part, decode=False)
    assert [bytes(data[at]) for at in range(len(data))] == files


def read(out, *parts):
    data = stoker.open(out, parts=parts)
    return [data[at] for at in range(len(data))]


def try_texts_and_classes(out):
    features = Features(category=Value("int64"), intent=ClassLabel(names=["no", "yes"]))
    data = Dataset.from_dict({"category": [5, 6], "intent": [1, 0]}, features=features)
    stoker.pack(data, out)
    found = stoker.open(out)
    assert [found.label(at) for at in (0, 1)] == [1, 0]
    assert found.label_names == ["no", "yes"]
    assert read(out, "category.json") == [(5,), (6,)]


def try_pictures_by_paths(out):
    data = Dataset.from_dict({"image": [str(path) for path in PATHS]})
    stoker.pack(data.cast_column("image", Picture()), out)
    same_files(out)


def try_pictures_as_bytes(out):
    features = Features(image=Picture())
    rows = [{"bytes": data, "path": None} for data in FILES]
    data = Dataset.from_dict({"image": rows}, features=features)
    stoker.pack(data, out / "plain")
    stoker.pack(data.with_format("torch"), out / "torch")
    stoker.pack(data.to_iterable_dataset(), out / "stream")
    for each in ("plain", "torch", "stream"):
        same_files(out / each)


def try_pictures_in_lists_and_dicts(out):
    features = Features(views=List(Picture()), one={"image": Picture(), "n": Value("int32")})
    views, one = [str(PATHS[0]), str(PATHS[1])], {"image": str(PATHS[2]), "n": 3}
    data = Dataset.from_dict({"views": [views], "one": [one]}, features=features)
    stoker.pack(data, out / "rows")
    stoker.pack(data.to_iterable_dataset(), out / "stream")
    for each in ("rows", "stream"):
        same_files(out / each, "views.0.jpg", FILES[:1])
        same_files(out / each, "views.1.jpg", FILES[1:2])
        same_files(out / each, "one.image.jpg", FILES[2:3])
        assert read(out / each, "one.n.json") == [(3,)]


def try_sounds(out):
    row = {"bytes": b"RIFF....WAVE", "path": "a.wav"}
    stoker.pack(Dataset.from_dict({"audio": [row]}).cast_column("audio", Audio()), out)
    same_files(out, "audio.wav", [b"RIFF....WAVE"])


def try_a_folder_of_pictures(out):
    stoker.pack(pictures(), out / "rows")
    stream = load("imagefolder", data_dir=str(WORK / "pictures"), streaming=True)
    stoker.pack(stream, out / "stream")
    stoker.pack(pictures().map(lambda row: {"width": row["image"].width}), out / "mapped")
    for each in ("rows", "stream", "mapped"):
        same_files(out / each)
        data = stoker.open(out / each)
        assert [data.label(at) for at in range(6)] == [0, 0, 0, 1, 1, 1]
        assert data.label_names == ["cat", "dog"]
    assert read(out / "mapped", "width.json") == [(8,)] * 6


def try_pictures_in_a_zip_that_is_not_unpacked(out):
    with zipfile.ZipFile(WORK / "pictures.zip", "w") as archive:
        for path in PATHS:
            archive.write(path, f"{path.parent.name}/{path.name}")
    files = {"data_files": str(WORK / "pictures.zip"), "drop_labels": True}
    stoker.pack(load("imagefolder", streaming=True, **files), out)
    same_files(out)


def try_a_selection_that_is_shuffled(out):
    stoker.pack(pictures().shuffle(seed=1).select([0, 1, 2]), out, shuffle=3)
    data = stoker.open(out)
    chosen = pictures().shuffle(seed=1)
    for at in range(3):
        number = int(data.key(at))
        assert data.label(at) == chosen[number]["label"]


def try_a_subset_of_torch(out):
    stoker.pack(Subset(pictures(), [5]), out)
    same_files(out, files=FILES[5:])
    assert stoker.open(out).label_names == ["cat", "dog"]


def try_a_transform_of_ones_own(out):
    def smaller(batch):
        return {"image": [each.resize((4, 3)) for each in batch["image"]], "label": batch["label"]}

    data = pictures().with_transform(smaller)
    stoker.pack(data, out)
    for at, (found, label) in enumerate(read(out, "image.png", "cls")):
        assert numpy.array_equal(found, numpy.asarray(data[at]["image"]))
        assert label == data[at]["label"]


def try_arrays(out):
    values = numpy.arange(24, dtype="float32").reshape(4, 2, 3)
    features = Features(x=Array2D((2, 3), "float32"), label=Value("int64"))
    stoker.pack(Dataset.from_dict({"x": values, "label": [3, 2, 1, 0]}, features=features), out)
    data = stoker.open(out)
    assert data.metadata["arrays"] == {"x.npy": {"dtype": "<f4", "shape": [2, 3]}}
    assert all(numpy.array_equal(data[at]["x.npy"], values[at]) for at in range(4))
    assert data.label(0) == 3


def try_tokens(out):
    rows = {"input_ids": [[1, 2, 3], [4, 5, 6]], "label": [0, 1]}
    stoker.pack(Dataset.from_dict(rows), out / "lists")
    assert read(out / "lists", "input_ids.json") == [([1, 2, 3],), ([4, 5, 6],)]
    for kind in ("numpy", "torch"):
        stoker.pack(Dataset.from_dict(rows).with_format(kind), out / kind)
        data = stoker.open(out / kind)
        assert data.metadata["arrays"] == {"input_ids.npy": {"dtype": "<i8", "shape": [3]}}
        assert data[1]["input_ids.npy"].tolist() == [4, 5, 6]
    for kind in ("arrow", "pandas"):
        stoker.pack(Dataset.from_dict(rows).with_format(kind), out / kind)
        assert read(out / kind, "input_ids.json", "cls") == [([1, 2, 3], 0), ([4, 5, 6], 1)]


def try_lists_of_several_lengths(out):
    rows = {"boxes": [[[1, 2], [3]]], "words": [["a", "bc"]]}
    stoker.pack(Dataset.from_dict(rows).with_format("numpy"), out)
    first, second, words = read(out, "boxes.0.npy", "boxes.1.npy", "words.json")[0]
    assert (first.tolist(), second.tolist(), words) == ([1, 2], [3], ["a", "bc"])


def try_nothing_and_times(out):
    day = datetime.datetime(2026, 1, 2, 3)
    rows = {
        "text": ["a", None],
        "label": [None, 1],
        "when": [day, day],
        "deep": [{"x": [None]}] * 2,
    }
    stoker.pack(Dataset.from_dict(rows), out)
    data = stoker.open(out)
    assert data[0] == {
        "text.txt": "a",
        "when.json": "2026-01-02T03:00:00",
        "deep.json": {"x": [None]},
    }
    assert data[1]["cls"] == 1


def generated():
    for number in range(5):
        yield {"number": number, "text": str(number)}


def try_generators(out):
    stoker.pack(Dataset.from_generator(generated, cache_dir=str(WORK / "cache")), out / "rows")
    stoker.pack(IterableDataset.from_generator(generated), out / "stream")
    for each in ("rows", "stream"):
        expected = [(number, str(number)) for number in range(5)]
        assert read(out / each, "number.json", "text.txt") == expected


def try_tables(out):
    rows = [{"text": "ein Öl", "label": 1}, {"text": 'a "b", c', "label": 0}]
    (WORK / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    made = load("json", data_files=str(WORK / "rows.jsonl"))
    made.to_csv(WORK / "rows.csv")
    made.to_parquet(WORK / "rows.parquet")
    for kind, name in (("json", "jsonl"), ("csv", "csv"), ("parquet", "parquet")):
        stoker.pack(load(kind, data_files=str(WORK / f"rows.{name}")), out / kind)
        assert read(out / kind, "text.txt", "cls") == [("ein Öl", 1), ('a "b", c', 0)]


def try_all_splits_at_once(out):
    both = load_dataset(
        "imagefolder", data_dir=str(WORK / "pictures"), cache_dir=str(WORK / "cache")
    )
    objects_tried.refused("it holds several by name: train", lambda: stoker.pack(both, out))


def try_no_rows(out):
    objects_tried.refused("gave no item", lambda: stoker.pack(Dataset.from_dict({"x": []}), out))


def try_a_file_that_is_gone(out):
    gone = Dataset.from_dict({"image": [str(WORK / "gone.jpg")]}).cast_column("image", Picture())
    objects_tried.refused("No such file", lambda: stoker.pack(gone, out))


objects_tried.run(globals(), WORK)
