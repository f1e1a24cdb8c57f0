"""Recurrent kernels: Elman, GRU and LSTM layers with hand-written backward passes, and attention inside them."""
