"""The HTTP server: its API, the engine with continuous batching, and the studio."""
