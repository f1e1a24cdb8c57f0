"""Learning: from data to weights."""
