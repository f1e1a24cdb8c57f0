"""Models at work: a predictor, and what serves it."""
