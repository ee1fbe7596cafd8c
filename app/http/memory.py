"""Keep freed memory for the next request instead of giving it back to the kernel after each one."""

import ctypes

MIB = 1 << 20

# Threads hold the interpreter's lock for most of what they allocate, so more arenas would only keep more freed memory.
ARENAS = 2

# mallopt(3): parameters of the GNU C library's allocator.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8


def keep_freed_memory() -> bool:
    """Let the allocator hold up to 64 MiB; whether it could be told.

    A body arrives in pieces of up to 1 MiB. Each is above the allocator's threshold, so by default every piece is fresh
    zeroed pages, and the page faults cost more than everything else that is done to receive an array.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):  # another C library
        return False
    options = ((_M_MMAP_THRESHOLD, 16 * MIB), (_M_TRIM_THRESHOLD, 64 * MIB), (_M_ARENA_MAX, ARENAS))
    return all(mallopt(parameter, value) for parameter, value in options)
