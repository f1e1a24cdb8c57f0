"""Showing attention."""
