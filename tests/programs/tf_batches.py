"""Reads a packed data set through tf.data, in every form a sample can have."""

import sys
from itertools import chain

import tensorflow as tf

import stoker


def numbers(batches):
    return [int(each) for batch in batches for each in batch["raw"][:, 0, 0]]


if __name__ == "__main__":
    data = stoker.open(sys.argv[1])
    made = data.to_tf(batch_size=4)
    assert isinstance(made, tf.data.Dataset)
    assert made.cardinality().numpy() == 6
    assert made.element_spec["raw"] == tf.TensorSpec((None, 2, 3), tf.uint8), made.element_spec
    assert made.element_spec["txt"] == tf.TensorSpec((None,), tf.string)
    assert made.element_spec["cls"].dtype == tf.int64
    batches = list(made)
    assert numbers(batches) == list(range(23))
    assert [each["raw"].shape[0] for each in batches] == [4, 4, 4, 4, 4, 3]
    assert batches[1]["txt"].numpy().tolist() == [b"4", b"5", b"6", b"7"]
    assert batches[1]["bin"].numpy()[3] == b"7" * 7

    # Each pass is an epoch of its own.
    shuffled = data.to_tf(batch_size=4, shuffle=True, seed=3)
    first, second = numbers(shuffled), numbers(shuffled)
    assert first != second
    assert sorted(first) == sorted(second) == list(range(23))

    # Ranks share.
    ranks = [numbers(data.to_tf(batch_size=4, rank=rank, world=2)) for rank in range(2)]
    assert sorted(chain.from_iterable(ranks)) == list(range(23))

    # Gathered as a whole: arrays and labels, and bytes.
    pairs = list(stoker.open(sys.argv[1], parts=("raw", "cls")).to_tf(batch_size=10))
    assert [int(each) for _, labels in pairs for each in labels] == [n % 5 for n in range(23)]
    raw = list(stoker.open(sys.argv[1], parts="bin", decode=False).to_tf(batch_size=10))
    assert raw[1].dtype == tf.string
    assert raw[1].numpy()[2] == b"12" * 12

    # A transform decides what a sample is.
    changed = stoker.open(sys.argv[1], parts=("raw", "cls"), transform=lambda s: s[0] / 2)
    assert next(iter(changed.to_tf(batch_size=3))).dtype == tf.float64

    # Keras takes it.
    model = tf.keras.Sequential([tf.keras.layers.Flatten(), tf.keras.layers.Dense(5)])
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(loss=loss, run_eagerly=True)
    fed = stoker.open(sys.argv[1], parts=("raw", "cls")).to_tf(batch_size=8, shuffle=True)
    history = model.fit(fed.map(lambda x, y: (tf.cast(x, tf.float32), y)), epochs=2, verbose=0)
    assert len(history.history["loss"]) == 2
    print("same")
