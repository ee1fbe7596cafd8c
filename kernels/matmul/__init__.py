"""The matrix product: a hand-written kernel with a fixed summation order, or a BLAS library."""
