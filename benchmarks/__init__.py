"""One file per question; each prints ratios against named peers measured in the same run."""
