"""What a model attended to: recorded, summarised, and told."""
