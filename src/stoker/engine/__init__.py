"""Who runs it? The local engine and Slurm."""
