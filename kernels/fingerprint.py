"""A fingerprint of the sources, by which compiled code of other sources is never used for them."""

import functools
import hashlib
from pathlib import Path


@functools.cache
def fingerprint() -> str:
    """A digest of every Python source in this package, 12 hexadecimal digits.

    Numba's cache looks at the file of the function it compiles, not at the files of the functions that one calls: after
    a change in `device/philox.py` it would run old random words. A cache directory named by this digest cannot.
    """
    digest = hashlib.sha256()
    here = Path(__file__).parent
    for file in sorted(here.rglob("*.py")):
        digest.update(file.relative_to(here).as_posix().encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()[:12]
