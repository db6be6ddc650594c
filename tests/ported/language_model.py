"""Transformer language model with warm-up, several parameter groups, perplexity."""
import math
import os
import time
from dataclasses import dataclass
from typing import Tuple

import torch
from torch import nn, Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


@dataclass
class GPTConfig:
    vocab_size: int = 32
    block_size: int = 12
    n_layer: int = 2
    n_embd: int = 16
    dropout: float = 0.0


class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.n_embd)
        self.qkv = nn.Linear(config.n_embd, 3 * config.n_embd)
        self.ln_2 = nn.LayerNorm(config.n_embd)
        self.mlp = nn.Sequential(nn.Linear(config.n_embd, 32), nn.GELU(), nn.Linear(32, config.n_embd))

    def forward(self, x):
        q, k, v = self.qkv(self.ln_1(x)).chunk(3, dim=-1)
        x = x + F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.transformer = nn.ModuleDict(dict(
            wte=nn.Embedding(config.vocab_size, config.n_embd),
            wpe=nn.Embedding(config.block_size, config.n_embd),
            h=nn.ModuleList([Block(config) for _ in range(config.n_layer)]),
        ))
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self.apply(self._init_weights)
        print("number of parameters: %.2fK" % (self.get_num_params() / 1e3,))

    def get_num_params(self):
        return sum(p.numel() for p in self.parameters())

    def _init_weights(self, module):
        if isinstance(module, nn.Linear):
            torch.nn.init.normal_(module.weight, mean=0.0, std=0.02)

    def forward(self, idx, targets=None):
        pos = torch.arange(idx.size(1), device=idx.device)
        x = self.transformer.wte(idx) + self.transformer.wpe(pos)
        for block in self.transformer.h:
            x = block(x)
        logits = self.lm_head(x)
        loss = None
        if targets is not None:
            loss = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))
        return logits, loss

    def configure_optimizers(self, weight_decay, learning_rate):
        decay = [p for p in self.parameters() if p.dim() >= 2]
        nodecay = [p for p in self.parameters() if p.dim() < 2]
        groups = [{"params": decay, "weight_decay": weight_decay}, {"params": nodecay, "weight_decay": 0.0}]
        return torch.optim.AdamW(groups, lr=learning_rate, betas=(0.9, 0.95))


def get_lr(it, warmup=4, total=16, lr=1e-2):
    if it < warmup:
        return lr * (it + 1) / warmup
    return 0.5 * lr * (1 + math.cos(math.pi * (it - warmup) / (total - warmup)))


@torch.no_grad()
def estimate_loss(model, loaders, device):
    out = {}
    model.eval()
    for split, loader in loaders.items():
        losses = torch.zeros(len(loader))
        for k, (x, y) in enumerate(loader):
            _, loss = model(x.to(device), y.to(device))
            losses[k] = loss.item()
        out[split] = losses.mean()
    model.train()
    return out


def main():
    torch.manual_seed(1337)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    data = torch.randint(0, 32, (256 + 64, 13))
    train_ds = TensorDataset(data[:256, :-1], data[:256, 1:])
    val_ds = TensorDataset(data[256:, :-1], data[256:, 1:])
    train_loader = DataLoader(train_ds, batch_size=32, shuffle=True)
    val_loader = DataLoader(val_ds, batch_size=32)
    model = GPT(GPTConfig())
    model.to(device)
    optimizer = model.configure_optimizers(0.1, 1e-2)
    it = 0
    for epoch in range(2):
        for X, Y in train_loader:
            lr = get_lr(it)
            for param_group in optimizer.param_groups:
                param_group["lr"] = lr
            X, Y = X.to(device), Y.to(device)
            logits, loss = model(X, Y)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            if it % 3 == 0:
                lossf = loss.item()
                print(f"iter {it}: loss {lossf:.4f}, lr {lr:.6f}")
            it += 1
        losses = estimate_loss(model, {"val": val_loader}, device)
        print(f"step {it}: val loss {losses['val']:.4f} ppl {math.exp(losses['val']):.2f}")


if __name__ == "__main__":
    main()
