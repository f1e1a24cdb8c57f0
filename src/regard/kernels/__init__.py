"""Kernels by subject: a plain module launches the kernels of its Triton module, `*_triton`, and imports it late.

In Triton kernels every output element is written by one program and sums have a fixed order, so that results are
bit-identical from run to run. With TRITON_INTERPRET=1 Triton's interpreter runs them on a CPU.

attention   reference, SDPA, blockwise and Triton implementations of one `AttentionSpec`; exact weights
recurrent   Elman, GRU and LSTM layers with hand-written backward passes, with and without attention
layers      residual + norm, linear + activation, cross-entropy, dropout, unfolding for convolutions
"""
