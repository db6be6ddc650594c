"""The Trainer of Hugging Face, with a small model made from a configuration."""

import tempfile

import torch
from loop_parts import Pass, Rows, SlowSGD, pause, read_words
from torch import Tensor
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

words = read_words(every=1, checks=4)


class Small(BertForSequenceClassification):
    """A model whose call and backward pass take as long as they are told."""

    def forward(self, input_ids: Tensor, labels: Tensor) -> object:
        pause("forward", words.forward)
        answer = super().forward(input_ids, labels=labels)
        answer.loss = Pass.apply(answer.loss, words.backward)
        return answer


class Texts(Rows):
    """Token numbers instead of rows."""

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        super().__getitem__(index)
        return {"input_ids": torch.arange(4), "labels": torch.tensor(index % 2)}


class Saves(TrainerCallback):
    """Does something between the epochs."""

    def on_epoch_end(self, *_: object, **__: object) -> None:
        pause("between", words.between)


model = Small(BertConfig(vocab_size=8, hidden_size=8, num_hidden_layers=1, num_attention_heads=1,
                         intermediate_size=8, max_position_embeddings=8))  # fmt: skip
with tempfile.TemporaryDirectory() as folder:
    Trainer(
        model,
        TrainingArguments(
            folder, num_train_epochs=words.epochs, per_device_train_batch_size=2,
            per_device_eval_batch_size=2, gradient_accumulation_steps=words.every,
            dataloader_num_workers=words.workers, eval_strategy="epoch", save_strategy="no",
            report_to=[], use_cpu=True, disable_tqdm=True, logging_strategy="no",
        ),
        train_dataset=Texts(words.batches, words.data),
        eval_dataset=Texts(words.checks, words.check, "check"),
        optimizers=(SlowSGD(model.parameters(), words.step), None),
        callbacks=[Saves()],
    ).train()  # fmt: skip
