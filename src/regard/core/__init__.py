"""Errors, configuration, sequences, shapes, atomic files and text sanitising: imported by every other package."""
