"""Kernels by subject, each plain module beside its Triton twin (`*_triton`, imported only to launch a kernel).

attention   reference, SDPA, blockwise and Triton implementations of one `AttentionSpec`; exact weights
recurrent   Elman, GRU and LSTM layers with hand-written backward passes, with and without attention
layers      residual + norm, linear + activation, cross-entropy, dropout, unfolding for convolutions
decode      one decoding step of a Transformer, sampling
"""
