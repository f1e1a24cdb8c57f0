"""Data: sources (text, tables, images, datasets, synthetic tasks), tokenizers,
prepared corpora and batches.
"""
