"""Who runs it? The local engine."""
