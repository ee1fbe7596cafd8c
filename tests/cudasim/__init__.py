"""Run CUDA kernels on a CPU: the text unchanged, one fiber per thread, the order of execution chosen by the test."""
