"""What is there: cluster profiles, shipped and the user's own."""
