"""What did it do? What enters the user's process, the sampler beside it, and the run folder."""
