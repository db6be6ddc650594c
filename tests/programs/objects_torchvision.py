"""Packs data sets of torchvision into the folder that is named, and compares what was packed."""

import gzip
import os
import struct
import sys
from pathlib import Path

import datasets as hugging_face
import numpy
import objects_tried
import torch
from PIL import Image

# The wheel on PyPI is built for CUDA. Beside PyTorch's CPU build its operators cannot be loaded;
# its data sets need none, but torchvision describes these two when it is imported.
if torch.version.cuda is None:
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

from torch.utils.data import ConcatDataset, DataLoader, Subset, random_split
from torchvision import datasets, tv_tensors
from torchvision.transforms import v2

import stoker

WORK = Path(sys.argv[1])
FASHION = Path("/usr/share/datasets/fashion-mnist")
PATHS = objects_tried.make_pictures(WORK / "pictures")


def folder(**options):
    return datasets.ImageFolder(str(WORK / "pictures"), **options)


def same_files(data, paths):
    assert [bytes(data[at][0]) for at in range(len(data))] == [p.read_bytes() for p in paths]
    assert [data.label(at) for at in range(len(data))] == [p.parent.name == "dog" for p in paths]
    assert data.label_names == ["cat", "dog"]


def same_arrays(data, items):
    """Compare tuples of one tensor and a label with what was packed of them."""
    assert list(data.metadata["arrays"]) == ["npy"]
    for at, (value, label) in enumerate(items):
        assert numpy.array_equal(data[at]["npy"], value.numpy())
        assert data.label(at) == label


def try_a_folder(out):
    stoker.pack(folder(), out)
    same_files(stoker.open(out, parts=("jpg", "cls"), decode=False), PATHS)


def try_pixels_of_a_folder(out):
    stoker.pack(folder(), out)
    for (image, _), found in zip(folder(), stoker.open(out, parts="jpg"), strict=True):
        assert numpy.array_equal(numpy.asarray(image), found)


def try_other_kinds_of_files(out):
    Image.new("RGB", (3, 2), "red").save(objects_tried.made(WORK / "others/a/1.ppm"))
    Image.new("P", (3, 2), 1).save(objects_tried.made(WORK / "others/b/2.png"))
    stoker.pack(datasets.ImageFolder(str(WORK / "others")), out)
    data = stoker.open(out, parts="png")
    assert (data[0] == [255, 0, 0]).all()
    assert data[1].shape == (2, 3, 3)


def try_a_folder_with_a_transform(out):
    resized = folder(transform=v2.Resize((4, 5)))
    stoker.pack(resized, out)
    for (image, _), found in zip(resized, stoker.open(out, parts="png"), strict=True):
        assert numpy.array_equal(numpy.asarray(image), found)


def try_a_folder_with_tensors(out):
    tensors = folder(transform=v2.Compose([v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]))
    stoker.pack(tensors, out)
    same_arrays(stoker.open(out), tensors)


def try_a_folder_of_ones_own(out):
    class Turned(datasets.ImageFolder):
        def __getitem__(self, at):
            path, target = self.samples[at]
            return self.loader(path).rotate(90, expand=True), target

    stoker.pack(Turned(str(WORK / "pictures")), out)
    assert stoker.open(out, parts="png")[0].shape == (8, 6, 3)


def try_a_subset(out):
    stoker.pack(Subset(folder(), [4, 1]), out)
    same_files(stoker.open(out, parts=("jpg", "cls"), decode=False), [PATHS[4], PATHS[1]])


def try_a_split_and_a_chain(out):
    first, second = random_split(folder(), [2, 4], torch.Generator().manual_seed(0))
    stoker.pack(ConcatDataset([first, second]), out)
    paths = [PATHS[each] for each in (*first.indices, *second.indices)]
    same_files(stoker.open(out, parts=("jpg", "cls"), decode=False), paths)


def try_fashion_mnist(out):
    raw = WORK / "FashionMNIST/raw"
    for path in FASHION.glob("*.gz"):
        objects_tried.made(raw / path.stem).write_bytes(gzip.decompress(path.read_bytes()))
    pictures = datasets.FashionMNIST(str(WORK), train=False)
    stoker.pack(Subset(pictures, range(50)), out / "pictures")
    data = stoker.open(out / "pictures", parts="png", decode="gray")
    for at in range(50):
        assert numpy.array_equal(data[at], numpy.asarray(pictures[at][0]))
    assert data.label_names[9] == "Ankle boot"
    tensors = datasets.FashionMNIST(str(WORK), train=False, transform=v2.PILToTensor())
    stoker.pack(Subset(tensors, range(50)), out / "tensors")
    same_arrays(stoker.open(out / "tensors"), [tensors[at] for at in range(50)])


def try_fake_data(out):
    stoker.pack(datasets.FakeData(5, (3, 8, 6), 4), out)
    for at, (image, label) in enumerate(datasets.FakeData(5, (3, 8, 6), 4)):
        data = stoker.open(out, parts="png")
        assert numpy.array_equal(numpy.asarray(image), data[at])
        assert data.label(at) == label


def try_boxes(out):
    def target(number):
        corners = [[0, 0, 5, 5], [1, 1, 2, 2]][: number + 1]
        box = tv_tensors.BoundingBoxes(corners, format="XYXY", canvas_size=(6, 8))
        return {"boxes": box, "labels": torch.tensor([1, 2][: number + 1]), "image_id": 7}

    stoker.pack(folder(target_transform=target), out)
    data = stoker.open(out, parts=("jpg", "boxes.npy", "labels.npy", "image_id.json"))
    assert data[0][1].tolist() == [[0, 0, 5, 5]]
    assert data[5][1].tolist() == [[0, 0, 5, 5], [1, 1, 2, 2]]
    assert data[5][2].tolist() == [1, 2]
    assert data[5][3] == 7


def try_several_targets(out):
    masked = folder(target_transform=lambda y: (y, Image.new("L", (2, 2), y), torch.ones(y + 1)))
    stoker.pack(masked, out)
    data = stoker.open(out, parts=("jpg", "png", "npy", "cls"))
    assert (data[5][1].max(), data[5][2].tolist(), data[5][3]) == (1, [1.0, 1.0], 1)


def try_plain_targets(out):
    stoker.pack(folder(target_transform=lambda y: {"label": y, "text": "x"}), out)
    assert stoker.open(out, parts="json")[5] == {"label": 1, "text": "x"}


def try_what_the_page_shows(out):
    page = (Path(__file__).parents[2] / "docs/pack.md").read_text()
    block = page.partition("### Python objects\n\n```python\n")[2].partition("```")[0]
    os.chdir(objects_tried.made(out / "page").parent)
    objects_tried.make_pictures(Path("images"))
    for name, shape in (("images-idx3", (7, 28, 28)), ("labels-idx1", (7,))):
        head = struct.pack(f">HBB{len(shape)}I", 0, 8, len(shape), *shape)
        for part in ("train", "t10k"):
            path = objects_tried.made(Path(f"data/FashionMNIST/raw/{part}-{name}-ubyte"))
            path.write_bytes(head + bytes(numpy.full(shape, 9, "u1")))
    hugging_face.Dataset.from_dict({"text": ["a", "b"]}).to_parquet("rows.parquet")
    exec(block, {})
    assert stoker.open("packed/fashion", parts=("npy", "cls"))[6][1] == 9
    assert stoker.open("packed/table").metadata["extensions"] == ["image.jpg", "cls"]
    assert stoker.open("packed/folder").label_names == ["cat", "dog"]
    assert len(stoker.open("packed/rows")) == len(stoker.open("packed/mine")) == 2


def try_batches(out):
    objects_tried.refused("it gives batches", lambda: stoker.pack(DataLoader(folder()), out))


objects_tried.run(globals(), WORK)
