"""Attention itself: the plain form, the fused form and the streamed form, held equal by the tests.

lookup     what is asked, of what, and what may be seen: the one argument they all take
plain      every weight laid out in memory; obvious, quadratic, the reference
fused      PyTorch's own kernels, linear in memory, for dot products
streamed   row blocks with a recomputing backward, linear in memory, for every score, bias and dropout
rows       exact weights of chosen rows, and summaries of every row, from the log-sum-exp
additive   the additive score on a GPU, in kernels of its own
dots       rows and summaries of dot products on a GPU
packed     sequences laid end to end
joining, products   what stands between two look-ups: sums with norms, products with activations
"""
