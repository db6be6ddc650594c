"""What should change? What limits a run, in words that can be acted on."""
