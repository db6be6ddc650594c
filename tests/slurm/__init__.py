"""A real Slurm of several nodes on this machine, and the tests that need one."""
