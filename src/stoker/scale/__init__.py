"""What would more GPUs buy: studies, the scaling model, cost, communication."""
