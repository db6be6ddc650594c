"""A folder before it is packed: what is in it, and what packing would bring."""
