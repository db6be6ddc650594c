"""A transformer on the CPU with as many threads as it is told, beside another one."""

import torch
from variant_parts import LENGTH, WORDS, Reader, read_words, train

words = read_words(steps=80, threads=4)
torch.set_num_threads(words["threads"])
torch.manual_seed(7)
inputs = torch.randint(0, WORDS, (16, LENGTH))
train(Reader(128), [(inputs, inputs[:, 0] % 2)] * words["steps"], 1)
