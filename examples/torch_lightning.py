"""Lightning: the training step is ours, the loop, the ranks and the sampler are Lightning's.

Here:          stoker run --procs 2 examples/torch_lightning.py
On a cluster:  stoker submit --cluster leonardo --account project_2001234 --gpus 8 --time 0:15:00 examples/torch_lightning.py
"""

import argparse
import os

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader
from torch_single import make_model, read_data


class Classifier(L.LightningModule):
    """The small network with its loss and its optimizer."""

    def __init__(self, log_every: int) -> None:
        super().__init__()
        self.model = make_model()
        self.log_every = log_every

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        """Return the loss of this rank's part of the batch."""
        images, labels = batch
        loss = nn.functional.cross_entropy(self.model(images), labels)
        # Not yet stepped: the first batch is step 1.
        step = self.global_step + 1
        if step % self.log_every == 0:
            mean = self.all_gather(loss.detach()).mean()
            if self.trainer.is_global_zero:
                print(f"step {step} loss {mean.item():.6f}", flush=True)
        return loss

    def test_step(self, batch: list[torch.Tensor], index: int) -> None:
        """Count the right classes of all ranks."""
        images, labels = batch
        right = (self.model(images).argmax(1) == labels).float().mean()
        self.log("accuracy", right, batch_size=len(labels), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer."""
        return torch.optim.SGD(self.parameters(), lr=0.02, momentum=0.9)


def count_ranks() -> tuple[int, int]:
    """Return ranks a node and nodes, as torchrun or srun has started them."""
    each = os.environ.get("LOCAL_WORLD_SIZE") or os.environ.get("SLURM_NTASKS_PER_NODE") or "1"
    nodes = os.environ.get("GROUP_WORLD_SIZE") or os.environ.get("SLURM_NNODES") or "1"
    return int(each), int(nodes)


def main() -> None:
    """Train, then test."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=128, help="of all ranks together")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--images", type=int, default=60_000, help="train on so many only")
    parser.add_argument("--every", type=int, default=50, help="print the loss every so many steps")
    parser.add_argument("--save", help="where the trained weights go")
    args = parser.parse_args()

    L.seed_everything(0)
    each, nodes = count_ranks()
    trainer = L.Trainer(
        devices=each, num_nodes=nodes, strategy="ddp", max_epochs=args.epochs,
        logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False,
    )  # fmt: skip
    module = Classifier(args.every)
    share = args.batch // (each * nodes)
    data = read_data("train", args.images)
    # Lightning puts a DistributedSampler in.
    trainer.fit(module, DataLoader(data, batch_size=share, shuffle=True, drop_last=True))
    test = DataLoader(read_data("t10k", args.images), batch_size=100)
    found = trainer.test(module, test, verbose=False)
    if trainer.is_global_zero:
        print(f"accuracy {found[0]['accuracy']:.4f}")
        if args.save:
            torch.save(module.model.state_dict(), args.save)


if __name__ == "__main__":
    main()
