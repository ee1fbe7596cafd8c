"""The malloc settings of the API process: freed memory is kept for the next HTTP request."""

import ctypes

MIB = 1 << 20

# Threads hold the interpreter's lock for most allocations, so more arenas would only keep more freed memory.
ARENAS = 2

# mallopt(3): parameters of the GNU C library's allocator.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8


def keep_freed_memory() -> bool:
    """Make malloc keep up to 64 MiB of freed memory for the HTTP server's next bodies. Returns whether that succeeded.

    A request body arrives in pieces of up to 1 MiB. Each is above malloc's threshold, so by default every piece is
    mapped as new zeroed pages. Their page faults cost more than all other work to receive an array.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):  # another C library
        return False
    options = ((_M_MMAP_THRESHOLD, 16 * MIB), (_M_TRIM_THRESHOLD, 64 * MIB), (_M_ARENA_MAX, ARENAS))
    return all(mallopt(parameter, value) for parameter, value in options)
