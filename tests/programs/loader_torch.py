"""What the loader does with PyTorch beyond PyTorch's own loader; a GPU is played where one is needed."""

import io
import sys
import threading
import types
import warnings
from random import Random
from unittest import mock

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, TensorDataset

import stoker
from stoker.data.pictures import device
from stoker.data.pictures.crop import CenterCrop, RandomResizedCrop, Resize

warnings.simplefilter("error")


def jitter(sample, chance):
    return sample[0] + chance.random(), {"half": torch.ones(2, dtype=torch.bfloat16)}


def by_processes(path):
    data = TensorDataset(torch.arange(60.0).reshape(20, 3))
    how = {"batch_size": 6, "shuffle": True, "transform": jitter, "num_workers": 2}
    threads = list(stoker.Loader(data, workers="threads", **how))
    processes = list(stoker.Loader(data, workers="processes", **how))
    assert len(threads) == len(processes) == 4
    for (one, half), (other, same) in zip(threads, processes, strict=True):
        assert torch.equal(one, other)
        assert half["half"].dtype == same["half"].dtype == torch.bfloat16
        other += 1  # It is ours to write to.
    packed = stoker.open(path, parts=("raw", "txt"))
    one, other = (
        list(stoker.Loader(packed, 4, num_workers=2, workers=each))
        for each in ("threads", "processes")
    )
    assert all(torch.equal(a[0], b[0]) and a[1] == b[1] for a, b in zip(one, other, strict=True))


def by_the_names_of_dataloader(path):
    data = stoker.open(path, parts="cls")
    generator = torch.Generator().manual_seed(5)
    names = {
        "batch_size": 4, "shuffle": True, "num_workers": 2, "collate_fn": None,
        "drop_last": False, "timeout": 0, "worker_init_fn": None, "multiprocessing_context": None,
        "generator": generator, "prefetch_factor": 2, "persistent_workers": True, "in_order": True,
    }  # fmt: skip
    assert sum(map(len, stoker.Loader(data, **names))) == 23
    sampler = RandomSampler(data, generator=torch.Generator().manual_seed(1))
    again = RandomSampler(data, generator=torch.Generator().manual_seed(1))
    ours, theirs = stoker.Loader(data, 5, sampler=sampler), DataLoader(data, 5, sampler=again)
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    batches = BatchSampler(range(23), 4, drop_last=True)
    assert len(list(stoker.Loader(data, batch_sampler=batches))) == 5


def streams(path):
    data = stoker.open(path, parts="cls", transform=lambda label: label + 0)
    stream = data.stream(shuffle=True, seed=1)
    assert isinstance(stream, IterableDataset)
    whole = stoker.open(path, decode={"txt": int}, parts="txt")
    for workers in (0, 1, 2):
        loader = DataLoader(whole.stream(shuffle=True), 4, num_workers=workers)
        assert sorted(each for batch in loader for each in batch.tolist()) == list(range(23))
    spawned = DataLoader(whole.stream(), 4, num_workers=2, multiprocessing_context="spawn")
    assert sorted(each for batch in spawned for each in batch.tolist()) == list(range(23))


class PlayedGpu:
    """CUDA where there is none: pinned memory and the device are the host's; says what was asked for."""

    def __enter__(self):
        self.pinned, self.used = [], threading.local()
        self.used.number = 3
        empty, to = torch.empty, torch.Tensor.to

        def host_empty(*shape, pin_memory=False, device=None, **how):
            made = empty(*shape, **how)
            if pin_memory:
                # Each thread has a GPU of its own, and must have been told which.
                assert torch.cuda.current_device() == 3
                self.pinned.append(made)
            return made

        def host_to(tensor, where, *rest, **how):
            return tensor if how else to(tensor, where, *rest)

        vision = types.ModuleType("torchvision.io")
        vision.ImageReadMode = types.SimpleNamespace(RGB="rgb")
        vision.decode_jpeg = self.decode
        self.batches = []
        self.patches = [
            mock.patch.object(torch.cuda, "is_available", return_value=True),
            mock.patch.object(torch.cuda, "mem_get_info", return_value=(1 << 30, 0)),
            mock.patch.object(torch.cuda, "current_device", self.current_device),
            mock.patch.object(torch.cuda, "set_device", self.set_device),
            mock.patch.object(torch, "empty", host_empty),
            mock.patch.object(torch.Tensor, "to", host_to),
            mock.patch.object(torch.Tensor, "pin_memory", lambda tensor: tensor),
            mock.patch("torch.utils.data._utils.pin_memory.pin_memory", lambda batch: batch),
            mock.patch.dict(
                sys.modules,
                {"torchvision": types.ModuleType("torchvision"), "torchvision.io": vision},
            ),
        ]
        for each in self.patches:
            each.start()
        return self

    def __exit__(self, *_):
        for each in self.patches:
            each.stop()

    def current_device(self):
        return getattr(self.used, "number", 0)

    def set_device(self, number):
        self.used.number = number

    def decode(self, encoded, mode, device):
        """A "JPEG" here is its height, its width, and one value for all pixels."""
        assert (mode, device) == ("rgb", "cuda")
        assert torch.cuda.current_device() == 3
        self.batches.append(len(encoded))
        for each in encoded:
            if len(each) != 3:
                raise RuntimeError("not a JPEG")
        return [torch.full((3, int(h), int(w)), int(v), dtype=torch.uint8) for h, w, v in encoded]

    def holds(self, tensor):
        begin = tensor.data_ptr()
        return any(
            each.data_ptr() <= begin and begin + tensor.nbytes <= each.data_ptr() + each.nbytes
            and tensor.untyped_storage().data_ptr() == each.untyped_storage().data_ptr()
            for each in self.pinned
        )  # fmt: skip


def sideways(samples):
    """A batch whose numbers do not lie in its own order, and one number for all of it."""
    values = torch.stack([values for (values,) in samples])
    pictures = torch.stack([values, -values], 2)
    return {"text": values.t(), "pictures": pictures.permute(0, 2, 1), "sum": values.sum()}


def pinned(path):
    data = stoker.open(path, parts=("raw", "cls"))
    plain = [(a.clone(), b) for a, b in stoker.Loader(data, 4)]
    with PlayedGpu() as gpu:
        for workers in (0, 2):
            loader = stoker.Loader(
                stoker.open(path, parts=("raw", "cls")), 4, num_workers=workers, pin_memory=True
            )
            kept = list(loader)
            assert all(gpu.holds(values) for values, _ in kept)
            assert all(type(batch) is tuple for batch in kept)
            assert all(
                torch.equal(a, c) and torch.equal(b, d)
                for (a, b), (c, d) in zip(plain, kept, strict=True)
            )
        tensors = TensorDataset(torch.arange(60.0).reshape(20, 3))
        loader = stoker.Loader(tensors, 6, num_workers=2, workers="processes", pin_memory=True)
        kept = list(loader)
        assert all(gpu.holds(values) for (values,) in kept)
        assert torch.equal(torch.cat([values for (values,) in kept]), tensors.tensors[0])
        loader = stoker.Loader(
            tensors, 5, num_workers=2, workers="processes", pin_memory=True, collate_fn=sideways
        )
        for at, batch in enumerate(loader):
            wanted = sideways([tensors[each] for each in range(5 * at, 5 * at + 5)])
            for name, values in wanted.items():
                assert torch.equal(batch[name], values), (name, batch[name])
                assert gpu.holds(batch[name])


def resident(path):
    data = stoker.open(path, parts=("raw", "cls"))
    plain = [(a.clone(), b) for a, b in stoker.Loader(data, 5, True, seed=2)]
    host = list(stoker.Loader(data.resident(), 5, True, seed=2))
    with PlayedGpu() as gpu:
        for where in ("pinned", "cuda"):
            kept = data.resident(where)
            assert isinstance(kept.columns["raw"], torch.Tensor)
            made = list(stoker.Loader(kept, 5, True, seed=2))
            # What is the user's own is done by threads.
            changed = stoker.Loader(kept, 5, num_workers=3, transform=lambda sample, chance: sample)
            assert changed._threads == 3
            if where == "pinned":
                assert all(gpu.holds(values) for values, _ in made)
            for others in (made, host):
                assert all(
                    torch.equal(a, c) and torch.equal(b, d)
                    for (a, b), (c, d) in zip(plain, others, strict=True)
                )


def on_the_gpu(path):
    with PlayedGpu() as gpu:
        crop = RandomResizedCrop((6, 8), flip=0.5)
        data = stoker.open(path, parts=("jpg", "cls"), decode="cuda", crop=crop)
        found = [list(stoker.Loader(data, 8, True, num_workers=each)) for each in (0, 3)]
        # A batch is decoded at once, and not in processes.
        assert set(gpu.batches) == {8, 7}, gpu.batches
        for images, labels in found[0]:
            assert images.shape == (len(labels), 3, 6, 8)
            assert images.dtype == torch.uint8
            assert torch.equal(images[:, 0, 0, 0] % 5, labels.to(torch.uint8))
        assert all(torch.equal(a, b) for (a, _), (b, _) in zip(*found, strict=True))
        one = stoker.open(path, parts="jpg", decode="cuda")[3]
        assert one.shape == (3, 13, 20)


def crops_as_torch_resizes(path):
    """Many pieces of any sizes at once are what torch makes of each of them alone."""
    sizes = [(7, 9), (300, 40), (64, 64), (1, 5), (120, 333), (9, 7)]
    pictures = [torch.randint(0, 256, (3, *size), dtype=torch.uint8) for size in sizes]
    for crop in (RandomResizedCrop(24, flip=0.5), CenterCrop(20, resize=30), Resize(16)):
        for most in (1, 30_000, 1 << 25):
            with mock.patch.object(device, "MAX_PIXELS", most):
                made = device.cropped(pictures, crop, [Random(each) for each in range(6)])
                for at, (picture, found) in enumerate(zip(pictures, made, strict=True)):
                    wanted = resized_alone(picture, crop.box(*picture.shape[1:], Random(at)))
                    assert found.shape == wanted.shape
                    # Sums in another order may fall on the other side of a half.
                    assert (found.int() - wanted.int()).abs().max() <= 1
                    assert (found != wanted).float().mean() < 0.01


def crops_are_those_of_no_digits_less(path):
    """A training may ask for batches while it computes in bfloat16; one row is left of a thin picture."""
    picture = torch.randint(0, 256, (3, 90, 70), dtype=torch.uint8)
    made = [next(device.cropped([picture], Resize((24, 31)), [None]))]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        made.append(next(device.cropped([picture], Resize((24, 31)), [None])))
    assert torch.equal(*made)
    thin = torch.full((3, 1, 5), 255, dtype=torch.uint8)
    assert next(device.cropped([thin], CenterCrop(224, resize=512), [None])).min() == 255


def resized_alone(picture, box):
    top, left = round(box.top), round(box.left)
    piece = picture[:, top : top + round(box.height), left : left + round(box.width)]
    made = torch.nn.functional.interpolate(
        piece[None].float(), (box.out_height, box.out_width), mode="bilinear", antialias=True
    )[0]
    made = made.round().clamp(0, 255).to(torch.uint8)
    return made.flip(-1) if box.is_flipped else made


def broken_on_the_gpu(path):
    with PlayedGpu():
        data = stoker.open(path, parts="bad.jpg", decode="cuda")
        error = None
        try:
            list(stoker.Loader(data, 8))
        except stoker.StokerError as raised:
            error = raised
        assert error.what == "cannot decode `0011.bad.jpg`", error
        assert error.why == "RuntimeError: not a JPEG"


def gathered_bytes_stay(path):
    """A batch whose memory is used again would show another's bytes."""
    data = stoker.open(path, parts="raw")
    loader = stoker.Loader(data, 3, num_workers=2)
    kept, copies = [], []
    for _ in range(3):
        for batch in loader:
            kept.append(batch[::2])
            copies.append(batch[::2].clone())
    assert all(torch.equal(a, b) for a, b in zip(kept, copies, strict=True))


def saved(path):
    loader = stoker.Loader(stoker.open(path, parts="cls"), 4, True)
    next(iter(loader))
    file = io.BytesIO()
    torch.save(loader.state_dict(), file)
    file.seek(0)
    other = stoker.Loader(stoker.open(path, parts="cls"), 4)
    other.load_state_dict(torch.load(file))
    assert sum(map(len, other)) == 19


if __name__ == "__main__":
    for part in (
        by_processes, by_the_names_of_dataloader, streams, pinned, resident, on_the_gpu,
        crops_as_torch_resizes, crops_are_those_of_no_digits_less, broken_on_the_gpu, gathered_bytes_stay, saved,
    ):  # fmt: skip
        part(sys.argv[1])
    print("same")
