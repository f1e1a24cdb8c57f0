"""What the choice of a token means: greedy search, sampling, beam search, logits processors, required phrases."""
