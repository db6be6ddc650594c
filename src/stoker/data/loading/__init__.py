"""Loading: packed samples as a data set, and batches of them."""
