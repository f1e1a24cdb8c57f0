"""Training progress on the terminal, log.jsonl, TensorBoard and Weights & Biases."""
