"""What should we ask for: from a spec and a cluster to a plan, and from a plan to a script."""
