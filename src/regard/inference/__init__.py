"""Trained models in use: loading, prediction, streaming, scoring, markup."""
