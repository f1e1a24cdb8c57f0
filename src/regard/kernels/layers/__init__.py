"""Layer kernels: linear, residual + norm, dropout, convolution windows."""
