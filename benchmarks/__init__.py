"""The benchmarks, one file per question, with ratios to named peers of the same run. `python -m benchmarks`."""
