"""Architectures of Hugging Face's transformers: config.json as our model table, and rules of their weights."""
