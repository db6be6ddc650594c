"""One rank of `stoker bench comm`: a program that the user's Python runs, with PyTorch."""

from __future__ import annotations

import json
import os
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

# As long as this for one size, within these numbers of repeats.
BUDGET_S = 0.5
REPEATS = (7, 100)
WARM_UPS = 2
# A model of this many layers of 1 MB: as many gradients, in as many buckets, as a real one.
LAYERS, WIDTH = 24, 512
STEPS, BATCH = 8, 4


def main(out: str, asked: dict[str, Any]) -> None:
    """Measure everything, and let rank 0 write it down."""
    # Stoker may live in another environment: its own modules are enough for us.
    sys.path.append(str(Path(__file__).parents[2]))
    from stoker.engine.context import context

    job = context().init(asked["backend"])
    sys.path.pop()
    torch = import_module("torch")
    device = torch.device(job.device if torch.distributed.get_backend() != "gloo" else "cpu")
    bench = Bench(torch, device, job)
    told = {
        "backend": torch.distributed.get_backend(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "ranks": job.world_size,
        "nodes": int(bench.largest(job.node)) + 1,
        "timings": [
            {"operation": name, "size": size, "seconds": bench.collective(name, size)}
            for name in ("all-reduce", "broadcast", "all-gather")
            for size in asked["sizes"]
        ],
        "buckets": [{"megabytes": each, "seconds": bench.steps(each)} for each in asked["buckets"]],
        "parameters_mb": LAYERS * WIDTH * WIDTH * 4 / 2**20,
    }
    if job.is_main:
        Path(out).write_text(json.dumps(told))
    job.barrier()
    job.close()
    # Threads of Gloo that outlive Python would abort it (pytorch#179291), with all written down.
    sys.stdout.flush()
    os._exit(0)


class Bench:
    """The collectives of one process group."""

    def __init__(self, torch: Any, device: Any, job: Any) -> None:
        self.torch, self.device, self.job = torch, device, job
        self.dist = torch.distributed

    def largest(self, value: float) -> float:
        """Return the largest value of all ranks."""
        told = self.torch.tensor([value], dtype=self.torch.float64, device=self.device)
        self.dist.all_reduce(told, op=self.dist.ReduceOp.MAX)
        return float(told.item())

    def collective(self, name: str, size: int) -> list[float]:
        """Return how long each repeat took, on the rank that took longest."""
        torch, dist = self.torch, self.dist
        count = max(1, size // 4)
        whole = torch.zeros(count, device=self.device)
        if name == "all-reduce":
            return self._repeat(lambda: dist.all_reduce(whole))
        if name == "broadcast":
            return self._repeat(lambda: dist.broadcast(whole, 0))
        # The size is that of the result; each rank gives its part.
        each = torch.zeros(max(1, count // self.job.world_size), device=self.device)
        parts = torch.zeros(each.numel() * self.job.world_size, device=self.device)
        gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
        return self._repeat(lambda: gather(parts, each))

    def _repeat(self, work: Any) -> list[float]:
        for _ in range(WARM_UPS):
            first = self.largest(self._timed(work))
        least, most = REPEATS
        count = max(least, min(most, int(BUDGET_S / max(first, 1e-6))))
        times = []
        for _ in range(count):
            self.dist.barrier()
            times.append(self._timed(work))
        return self._slowest(times)

    def _timed(self, work: Any) -> float:
        self._settle()
        start = time.perf_counter()
        work()
        self._settle()
        return time.perf_counter() - start

    def _settle(self) -> None:
        if self.device.type == "cuda":
            self.torch.cuda.synchronize(self.device)

    def _slowest(self, times: list[float]) -> list[float]:
        told = self.torch.tensor(times, dtype=self.torch.float64, device=self.device)
        self.dist.all_reduce(told, op=self.dist.ReduceOp.MAX)
        return [float(each) for each in told.tolist()]

    def steps(self, megabytes: int) -> list[float]:
        """Return the time of steps whose gradients travel in buckets of this size."""
        torch = self.torch
        torch.manual_seed(0)
        layers = [torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)]
        model = torch.nn.parallel.DistributedDataParallel(
            torch.nn.Sequential(*layers).to(self.device), bucket_cap_mb=megabytes
        )
        batch = torch.ones(BATCH, WIDTH, device=self.device)

        def step() -> None:
            model(batch).sum().backward()
            model.zero_grad(set_to_none=True)

        # The buckets are made anew after the first step.
        for _ in range(WARM_UPS + 1):
            step()
        times = []
        for _ in range(STEPS):
            self.dist.barrier()
            times.append(self._timed(step))
        return self._slowest(times)


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
