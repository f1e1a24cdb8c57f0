"""Checkpoints: the atomic, hashed store; the file format; the model card."""
