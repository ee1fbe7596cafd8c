"""The faults of a GPU: one exception for each kind, chosen by the CUDA error number."""


class DeviceFault(Exception):
    """Raised if a CUDA call of the GPU fails; `code` is the CUDA error number if there is one.

    `suspects` are the kernels that may be the cause, in the order of their launches. An error of a kernel appears at a
    later wait, so there can be several: those launched and not known to have ended. A single suspect is the cause.
    """

    def __init__(self, message: str, code: int | None = None, suspects: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.code = code
        self.suspects = suspects

    @property
    def kernel(self) -> str | None:
        """The CUDA kernel that is blamed for the fault: the first suspect, since no kernel runs after a fault."""
        return self.suspects[0] if self.suspects else None


class NoDevice(DeviceFault):
    """Raised if there is no usable GPU to run kernels on; the message says why."""


class OutOfMemory(DeviceFault):
    """Raised if device memory for a kernel's arrays runs out; the message has the bytes."""


class LaunchFailed(DeviceFault):
    """Raised if a kernel launch is refused (bad configuration, no kernel image). The CUDA context stays usable."""


class CompileFailed(DeviceFault):
    """Raised if a CUDA kernel cannot be compiled: NVRTC refused it, or cannot be loaded."""


class DeviceLost(DeviceFault):
    """Raised for a sticky or unknown CUDA error: the CUDA context may be lost, and its process must exit."""


# By number, never by text. For these errors CUDA says that the process must end: every later call has the same error.
# ECC, NVLink, contained, illegal address, time-out, destroyed context, assertion, hardware stack to launch failure,
# tensor memory, ended by the MPS server, external device; and 999, of which it says nothing.
_STICKY = {214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721, 810, 911, 999}
# The launch was refused, nothing happened: invalid value, configuration, symbol, function or image, no image for this
# GPU, PTX of another version, invalid source, a file, a shared object's symbol or the object not found, an operating
# system's call, not found, too many resources, too many blocks that wait for each other, not supported, a cluster that
# is too large.
_REFUSED = {1, 9, 13, 98, 200, 209, 218, 222, 300, 301, 302, 303, 304, 500, 701, 720, 801, 912}


def fault(code: int, message: str, suspects: tuple[str, ...] = ()) -> DeviceFault:
    """The exception for a CUDA error number of a GPU, with the kernels that may be the cause.

    An unknown number becomes DeviceLost: a new process costs seconds, while an undetected broken context would fail
    every later job.
    """
    if code == 2:
        return OutOfMemory(message, code)
    if code in _REFUSED:
        return LaunchFailed(message, code, suspects)
    unknown = "" if code in _STICKY else f" (CUDA error {code}, of unknown effect)"
    return DeviceLost(message + unknown, code, suspects)
