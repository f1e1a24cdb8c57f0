"""The events of a run in log.jsonl, TensorBoard and Weights & Biases."""
