"""What a training run eats: many samples in a few standard files, found by an index."""
