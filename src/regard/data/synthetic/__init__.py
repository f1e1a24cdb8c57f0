"""Synthetic data: string tasks, dates, pronunciations, drawn scenes."""
