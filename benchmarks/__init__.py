"""One file per question; each prints ratios against named peers measured in the same run."""

import os
from pathlib import Path

from kernels.fingerprint import fingerprint

# Before anything imports Numba: what is measured is compiled from the sources as they are.
os.environ.setdefault("NUMBA_CACHE_DIR", str(Path(__file__).parent.parent / ".cache" / "numba" / fingerprint()))
