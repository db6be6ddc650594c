"""Slow storage: what is read comes through a pipe, from a process that takes its time."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from loading_parts import BATCH, BYTES, read_words, train
from torch.utils.data import DataLoader, Dataset

words = read_words(pause_ms=4.0, workers=0, epochs=2, batches=60)
FEEDER = """
import sys, time
with open(sys.argv[1], "wb", buffering=0) as pipe:
    while True:
        time.sleep(float(sys.argv[2]) / 1000)
        try:
            pipe.write(bytes(int(sys.argv[3])))
        except BrokenPipeError:
            break
"""


class Pictures(Dataset):
    """Rows that are read from a pipe."""

    def __init__(self, path):
        self.path, self.pipe = path, None

    def __len__(self):
        return BATCH * words["batches"]

    def __getitem__(self, index):
        if self.pipe is None:
            self.pipe = Path(self.path).open("rb", buffering=0)
        raw = bytearray()
        while len(raw) < BYTES:
            raw += self.pipe.read(BYTES - len(raw))
        return torch.frombuffer(raw, dtype=torch.uint8).view(3, 64, 64) / 255, index % 2


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/pipe"
        os.mkfifo(path)
        feeder = [sys.executable, "-S", "-c", FEEDER, path, str(words["pause_ms"]), str(BYTES)]
        with subprocess.Popen(feeder) as feeding:
            loader = DataLoader(Pictures(path), batch_size=BATCH, num_workers=words["workers"])
            train(loader, words["epochs"])
            feeding.kill()
