"""One file per question; each gives ratios to named peers measured in the same run. `python -m benchmarks`."""
