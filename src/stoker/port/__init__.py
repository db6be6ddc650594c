"""What must be rewritten: one-GPU scripts to several processes, as a diff to review."""
