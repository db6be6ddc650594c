"""What can be packed, one kind a module."""
