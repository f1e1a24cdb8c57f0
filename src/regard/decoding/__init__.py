"""Decoding: one search for every decoder, with its strategies, logits processors and constraints."""
