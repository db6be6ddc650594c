"""Training loops of many kinds, each with the same planted delays; see delays.py.

loops.py --loop plain --workers 2 --steps 100 --plant item=24,forward=6

The last line that it prints is JSON: what was really planted, and how long a step took by the
loop's own clock.
"""

import os
import threading
import time
from contextlib import suppress
from importlib import import_module

import torch
from torch import nn
from torch.nn import functional as F

from delays import BATCH, CLASSES, FEATURES
from loop import parse_words, train, turn
from planted import (
    PLANTS,
    Data,
    Model,
    SlowSGD,
    collate,
    make_loader,
    stall_backward,
    stall_forward,
    time_waits,
)


def make_model(outputs=CLASSES):
    model = Model(outputs).to(PLANTS.device)
    return model, SlowSGD(model.parameters(), lr=0.001)


def plain(args, model=None):
    own, optimizer = make_model()
    model = own if model is None else model(own)
    for batch in make_loader(args.steps, args.workers):
        batch = batch.to(PLANTS.device)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(batch["x"]), batch["labels"])
        loss.backward()
        optimizer.step()


def accumulate(args):
    model, optimizer = make_model()
    for number, batch in enumerate(make_loader(2 * args.steps, args.workers)):
        batch = batch.to(PLANTS.device)
        loss = F.cross_entropy(model(batch["x"]), batch["labels"]) / 2
        loss.backward()
        if number % 2 == 1:
            optimizer.step()
            optimizer.zero_grad()


def zipped(args):
    model, optimizer = make_model()
    loaders = (make_loader(args.steps, args.workers), make_loader(args.steps, args.workers))
    for one, two in zip(*loaders, strict=True):
        one, two = one.to(PLANTS.device), two.to(PLANTS.device)
        x = torch.cat([one["x"], two["x"]])
        loss = F.cross_entropy(model(x), torch.cat([one["labels"], two["labels"]]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def gan(args):
    judge, judge_optimizer = make_model(1)
    maker, maker_optimizer = make_model(FEATURES)
    maker_optimizer.is_main = False
    loss_of = nn.BCEWithLogitsLoss()
    real = torch.ones(BATCH, 1, device=PLANTS.device)
    for batch in make_loader(args.steps, args.workers):
        batch = batch.to(PLANTS.device)
        made = maker(torch.randn_like(batch["x"]))
        maker_optimizer.zero_grad()
        loss_of(judge(made), real).backward()
        maker_optimizer.step()
        judge_optimizer.zero_grad()
        loss = loss_of(judge(batch["x"]), real) + loss_of(judge(made.detach()), 1 - real)
        loss.backward()
        judge_optimizer.step()


def validation(args):
    model, optimizer = make_model()
    loader = make_loader(args.steps // 4, args.workers)
    held_out = make_loader(10, args.workers)
    for _ in range(4):
        PLANTS.epoch()
        model.train()
        for batch in loader:
            batch = batch.to(PLANTS.device)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(batch["x"]), batch["labels"])
            loss.backward()
            optimizer.step()
        model.eval()
        PLANTS.is_evaluating = True
        with torch.no_grad():
            for batch in held_out:
                batch = batch.to(PLANTS.device)
                F.cross_entropy(model(batch["x"]), batch["labels"])
        PLANTS.is_evaluating = False


def amp(args):
    model, optimizer = make_model()
    kind = PLANTS.device.type
    scaler = torch.amp.GradScaler(kind)
    dtype = torch.float16 if kind == "cuda" else torch.bfloat16
    for batch in make_loader(args.steps, args.workers):
        batch = batch.to(PLANTS.device)
        optimizer.zero_grad()
        with torch.autocast(kind, dtype=dtype):
            loss = F.cross_entropy(model(batch["x"]), batch["labels"])
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def compiled(args):
    # The delays are no part of the graph, as a user's logging would be.
    Model.stall_backward = staticmethod(torch.compiler.disable(stall_backward))
    Model.stall_forward = staticmethod(torch.compiler.disable(stall_forward))
    backend = "inductor" if PLANTS.device.type == "cuda" else "eager"
    plain(args, lambda model: torch.compile(model, backend=backend))


def graphs(args):
    """Forward, loss, backward and optimizer captured once and replayed; CUDA only."""
    model, optimizer = make_model()
    x = torch.zeros(BATCH, FEATURES, device="cuda")
    labels = torch.zeros(BATCH, dtype=torch.long, device="cuda")

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(model(x), labels)
        loss.backward()
        optimizer.step()

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    PLANTS.events.clear()
    PLANTS.ticks.clear()
    graph = torch.cuda.CUDAGraph()
    optimizer.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        step()
    for batch in make_loader(args.steps, args.workers):
        if PLANTS.ballast is not None:
            PLANTS.transfer()
        x.copy_(batch["x"])
        labels.copy_(batch["labels"])
        graph.replay()
        PLANTS.replayed()
        PLANTS.tick()


def lightning(args):
    try:
        import lightning.pytorch as pl
    except ImportError:
        import pytorch_lightning as pl

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = Model()

        def training_step(self, batch, index):
            return F.cross_entropy(self.model(batch["x"]), batch["labels"])

        def configure_optimizers(self):
            return SlowSGD(self.parameters(), lr=0.001)

    trainer = pl.Trainer(
        accelerator="gpu" if PLANTS.device.type == "cuda" else "cpu", devices=1,
        max_steps=args.steps, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Module(), make_loader(args.steps, args.workers))


def hf(args):
    from transformers import Trainer, TrainingArguments

    model, optimizer = make_model()
    settings = TrainingArguments(
        output_dir="hf", max_steps=args.steps, per_device_train_batch_size=BATCH,
        dataloader_num_workers=args.workers, dataloader_pin_memory=False, report_to=[],
        save_strategy="no", logging_strategy="no", disable_tqdm=True, remove_unused_columns=False,
        use_cpu=PLANTS.device.type == "cpu",
    )  # fmt: skip
    schedule = torch.optim.lr_scheduler.ConstantLR(optimizer, 1.0)
    Trainer(
        model=model, args=settings, train_dataset=Data(args.steps), data_collator=collate,
        optimizers=(optimizer, schedule),
    ).train()  # fmt: skip


def accelerate(args):
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=PLANTS.device.type == "cpu")
    model, optimizer = make_model()
    model, optimizer, loader = accelerator.prepare(
        model, optimizer, make_loader(args.steps, args.workers)
    )
    for batch in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(batch["x"]), batch["labels"])
        accelerator.backward(loss)
        optimizer.step()


def deepspeed(args):
    import deepspeed

    for name, value in {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1",
                        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}.items():  # fmt: skip
        os.environ.setdefault(name, value)
    backend = "gloo" if PLANTS.device.type == "cpu" else "nccl"
    torch.distributed.init_process_group(backend)
    model, optimizer = make_model()
    config = {"train_micro_batch_size_per_gpu": BATCH, "gradient_accumulation_steps": 1}
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    for batch in make_loader(args.steps, args.workers):
        batch = batch.to(PLANTS.device)
        loss = F.cross_entropy(engine(batch["x"]), batch["labels"])
        engine.backward(loss)
        engine.step()
    torch.distributed.destroy_process_group()


def ddp(args):
    """Two ranks whose gradients arrive late, as over a slow network: without the hosts waiting.

    With `late`, only the first bucket's are; the backward pass of the rest may hide them.
    """
    import torch.distributed as dist

    dist.init_process_group("gloo")
    own, optimizer = make_model()
    # A bucket for each layer: the cap is below the size of either.
    model = nn.parallel.DistributedDataParallel(own, bucket_cap_mb=0.002)

    def arrive_late(state, bucket):
        gradients = bucket.buffer().div_(dist.get_world_size())
        arrived = torch.futures.Future()
        bucket_is_last = bucket.is_last()
        ms = PLANTS.ms["comm"] + (PLANTS.ms["late"] if bucket.index() == 0 else 0.0)

        def finish(done):
            began, reduced = time.perf_counter(), done.value()[0]

            def arrive():
                if bucket_is_last or PLANTS.ms["late"]:
                    place = "comm" if bucket_is_last else "late"
                    PLANTS.count(place, time.perf_counter() - began if ms else 0.0)
                arrived.set_result(reduced)

            if ms:
                threading.Timer(ms / 1000, arrive).start()
            else:
                arrive()

        dist.all_reduce(gradients, async_op=True).get_future().add_done_callback(finish)
        return arrived

    model.register_comm_hook(None, arrive_late)
    for batch in make_loader(args.steps, args.workers):
        batch = batch.to(PLANTS.device)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(batch["x"]), batch["labels"])
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()


def allreduce(args):
    """Two ranks that add their gradients up by hand; with `late`, rank 1 comes late each time."""
    import torch.distributed as dist

    dist.init_process_group("gloo")
    model, optimizer = make_model()
    for batch in make_loader(args.steps, args.workers):
        batch = batch.to(PLANTS.device)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(batch["x"]), batch["labels"])
        if dist.get_rank() == 1:
            PLANTS.at("late")
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
        optimizer.step()
    dist.destroy_process_group()


LOOPS = (
    plain, accumulate, zipped, gan, validation, amp, compiled, graphs, lightning, hf, accelerate,
    deepspeed, ddp, allreduce,
)  # fmt: skip


def main():
    args = parse_words(LOOPS)
    os.environ.setdefault("DS_ACCELERATOR", args.device)
    for name in args.ready:
        with suppress(ImportError):
            import_module(name)
    with turn(args.turn):
        torch.set_num_threads(1)
        PLANTS.set_up(args.plant, args.device, args.busy)
        time_waits()
        train(args, LOOPS, PLANTS)


if __name__ == "__main__":
    main()
