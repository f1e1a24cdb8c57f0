"""The networks: attention and everything that is built from it."""
