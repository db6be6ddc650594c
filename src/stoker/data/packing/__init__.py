"""Packing: from a source to archives with an index."""
