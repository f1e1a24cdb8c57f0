"""Serving: an engine that answers requests in continuous batches."""
