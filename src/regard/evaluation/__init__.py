"""Evaluation metrics, their bootstrap intervals and significance tests, and reports of several systems."""
