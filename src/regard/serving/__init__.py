"""The HTTP server: its API, and the scheduler with continuous batching."""
