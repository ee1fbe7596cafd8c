"""NVIDIA's Xid catalogue: what each fault the driver logs means, and what it asks for.

The numbers, names and immediate actions are those of "Analyzing Xid Errors with the Xid Catalog", for Ampere and newer,
https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html, read in November 2026. Numbers it marks as unused
are left out.
"""

from typing import Literal

Asks = Literal[
    "ignore",
    "restart-app",
    "reset-gpu",
    "restart-vm",
    "restart-machine",
    "check-nvlink",
    "check-power",
    "update-software",
    "look",
]

_RESTARTED_ENGINES = {
    **dict.fromkeys((39, 40, 41, 70, 71, 72, 75, 76, 77, 85, *range(126, 136)), "a copy engine failed"),
    **dict.fromkeys((68, 82, 83, 84, 86, 88, 89, *range(96, 106), 139), "a video or image engine failed"),
}
_NVLINK = dict.fromkeys((74, *range(144, 151)), "an NVLink connection failed")

_CATALOGUE: dict[int, tuple[Asks, str]] = {
    8: ("restart-app", "a channel stopped processing"),
    11: ("restart-app", "a corrupted push buffer"),
    13: ("restart-app", "a kernel's exception, mostly an access out of bounds"),
    14: ("ignore", "an injected error"),
    25: ("restart-app", "an illegal push buffer"),
    31: ("restart-app", "a kernel's page fault"),
    32: ("restart-app", "a corrupted push buffer, mostly from the PCI bus"),
    37: ("ignore", "an error of the driver's firmware"),
    38: ("ignore", "an error of the driver's firmware"),
    43: ("ignore", "a program was stopped; the GPU is healthy"),
    44: ("ignore", "a fault during a context switch"),
    # "Solo" it asks for the fabric manager's restart; here it comes of a child that was killed.
    45: ("ignore", "the channels of a program that ended were removed"),
    46: ("reset-gpu", "the GPU stopped processing"),
    # A workflow in the catalogue, whose text says that a reset or a restart of the machine clears it.
    48: ("reset-gpu", "an uncorrectable memory error"),
    54: ("check-power", "auxiliary power is not connected"),
    60: ("restart-app", "a security engine failed"),
    62: ("reset-gpu", "an internal controller halted"),
    63: ("ignore", "a row of memory was remapped"),
    64: ("reset-gpu", "a row of memory could not be remapped"),
    66: ("ignore", "an illegal access by the driver"),
    67: ("ignore", "an illegal access by the driver"),
    69: ("restart-app", "an error of the graphics engine's class"),
    78: ("update-software", "a virtual GPU could not start"),
    79: ("restart-machine", "the GPU has fallen off the bus"),
    80: ("restart-app", "corrupted data were sent to the GPU"),
    92: ("ignore", "many correctable memory errors"),
    93: ("ignore", "the limit of writes to the InfoROM was reached"),
    94: ("restart-app", "a memory error that was contained in one program"),
    95: ("reset-gpu", "a memory error that was not contained"),
    106: ("ignore", "a test message"),
    107: ("ignore", "a test message"),
    108: ("ignore", "an address of another GPU was not found"),
    109: ("reset-gpu", "a context switch timed out"),
    110: ("reset-gpu", "a security fault"),
    119: ("reset-gpu", "the GPU's system processor does not answer"),
    120: ("reset-gpu", "an error of the GPU's system processor"),
    121: ("ignore", "corrected errors of the link to the CPU"),
    136: ("reset-gpu", "a link could not be trained"),
    137: ("ignore", "a program's illegal access over NVLink"),
    140: ("reset-gpu", "an uncorrectable memory error escaped"),
    141: ("ignore", "an error of CUDA's fast path"),
    143: ("reset-gpu", "the GPU could not be initialised"),
    151: ("restart-vm", "a rotation of keys failed"),
    152: ("ignore", "an error of the deep-learning accelerator"),
    153: ("ignore", "an error of the deep-learning accelerator"),
    154: ("ignore", "the recovery action changed; the driver is asked for it directly"),
    155: ("reset-gpu", "an NVLink went down on purpose"),
    156: ("reset-gpu", "a resource was retired"),
    157: ("ignore", "a resource could not be retired"),
    158: ("reset-gpu", "a fatal time-out"),
    159: ("look", "an error of the link to the CPU"),
    160: ("ignore", "a memory channel was retired"),
    161: ("ignore", "a memory channel could not be retired"),
    162: ("ignore", "power smoothing is on again"),
    163: ("ignore", "power smoothing is off"),
    164: ("ignore", "power smoothing is nearly worn out"),
    165: ("ignore", "power smoothing is worn out"),
    168: ("look", "memory is smaller than it was"),
    171: ("ignore", "the details of an Xid 48"),
    172: ("ignore", "the details of an Xid 48"),
    **{xid: ("restart-app", meaning) for xid, meaning in _RESTARTED_ENGINES.items()},
    **{xid: ("check-nvlink", meaning) for xid, meaning in _NVLINK.items()},
}


def meaning(xid: int) -> tuple[Asks, str]:
    """The action that a GPU's Xid asks for, and its meaning in words.

    An Xid that is not in the catalogue asks for a look.
    """
    return _CATALOGUE.get(xid, ("look", "a fault of which NVIDIA's catalogue says nothing"))
