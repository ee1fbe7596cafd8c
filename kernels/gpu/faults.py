"""The faults of a device: one exception for each kind, and which of them a CUDA error number stands for."""


class DeviceFault(Exception):
    """A device failed at a call; `code` is the CUDA error number where there is one.

    `suspects` are the kernels that may have done it, in the order of their launches. Errors of a kernel surface at a
    later wait, so there can be several: those launched and not known to have ended. Where there is one, it did it.
    """

    def __init__(self, message: str, code: int | None = None, suspects: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.code = code
        self.suspects = suspects

    @property
    def kernel(self) -> str | None:
        """The kernel it is put down to: the first suspect, since what runs after a fault does not run."""
        return self.suspects[0] if self.suspects else None


class NoDevice(DeviceFault):
    """There is no usable GPU; the message says why."""


class OutOfMemory(DeviceFault):
    """Device memory ran out; the message carries the bytes."""


class LaunchFailed(DeviceFault):
    """A launch was refused (bad configuration, no kernel image): the job's fault, the context lives on."""


class CompileFailed(DeviceFault):
    """A kernel could not be compiled here: NVRTC refused it or cannot be loaded."""


class DeviceLost(DeviceFault):
    """A sticky or an unknown error: the context is, or may be, gone and the process that owns it must exit."""


# By number, never by text. Of these CUDA says that the process must be ended: every later call has the same error.
# ECC, NVLink, contained, illegal address, time-out, destroyed context, assertion, hardware stack to launch failure,
# tensor memory, ended by the MPS server, external device; and 999, of which it says nothing.
_STICKY = {214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721, 810, 911, 999}
# The launch was refused, nothing happened: invalid value, configuration, symbol, function or image, no image for this
# GPU, PTX of another version, invalid source, a file, a shared object's symbol or the object not found, an operating
# system's call, not found, too many resources, too many blocks that wait for each other, not supported, a cluster that
# is too large.
_REFUSED = {1, 9, 13, 98, 200, 209, 218, 222, 300, 301, 302, 303, 304, 500, 701, 720, 801, 912}


def fault(code: int, message: str, suspects: tuple[str, ...] = ()) -> DeviceFault:
    """Return the fault a CUDA error number stands for, put down to `suspects`.

    A number that is not known here is DeviceLost: a new process costs seconds, and a context that is broken without
    being known to be would fail every job after this one.
    """
    if code == 2:
        return OutOfMemory(message, code)
    if code in _REFUSED:
        return LaunchFailed(message, code, suspects)
    unknown = "" if code in _STICKY else f" (CUDA error {code}, of unknown effect)"
    return DeviceLost(message + unknown, code, suspects)
