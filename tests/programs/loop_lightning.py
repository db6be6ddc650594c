"""Lightning's Trainer, with its own or the user's handling of the optimizer, and validation."""

import warnings

import lightning
import torch
import torch.nn.functional as F
from loop_parts import Net, Rows, SlowSGD, pause, read_words
from torch import Tensor
from torch.utils.data import DataLoader

words = read_words(how="automatic", every=1, checks=4)


class Lit(lightning.LightningModule):
    """The model, its loss and its optimizer."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = words.how == "automatic"
        self.net = Net(words)

    def training_step(self, batch: tuple[Tensor, Tensor], number: int) -> Tensor | None:
        x, y = batch
        loss = F.mse_loss(self.net(x), y)
        pause("loss", words.loss)
        if self.automatic_optimization:
            return loss
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()
        return None

    def validation_step(self, batch: tuple[Tensor, Tensor], number: int) -> None:
        F.mse_loss(self.net(batch[0]), batch[1])

    def on_train_batch_end(self, *_: object) -> None:
        pause("after", words.after)

    def on_train_epoch_end(self) -> None:
        pause("between", words.between)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return SlowSGD(self.parameters(), words.step)


warnings.filterwarnings("ignore")
lightning.Trainer(
    accelerator="cpu", max_epochs=words.epochs, accumulate_grad_batches=words.every, logger=False,
    enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
).fit(
    Lit(),
    DataLoader(Rows(words.batches, words.data), batch_size=2, num_workers=words.workers),
    DataLoader(Rows(words.checks, words.check, "check"), batch_size=2) if words.checks else None,
)  # fmt: skip
