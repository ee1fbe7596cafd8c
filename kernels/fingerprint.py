"""A fingerprint of the kernels' Python sources, so that compiled code of other sources is never used."""

import functools
import hashlib
from pathlib import Path


@functools.cache
def fingerprint() -> str:
    """A digest of every Python source of the kernels, 12 hexadecimal digits.

    Numba's cache checks only the file of the compiled function, not the files of functions it calls. After a change in
    `device/philox.py` it would run the old generator. In a cache directory named by this digest that cannot happen.
    """
    digest = hashlib.sha256()
    here = Path(__file__).parent
    for file in sorted(here.rglob("*.py")):
        digest.update(file.relative_to(here).as_posix().encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()[:12]
