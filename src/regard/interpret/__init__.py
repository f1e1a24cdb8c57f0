"""Interpretation: what a model attended to, captured exactly and summarized."""
