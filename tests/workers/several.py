"""Stand-ins for several GPUs: each is told its UUID and bears it in its name."""

from tests.workers.device import PaperDevice


class NumberedDevice(PaperDevice):
    """A device of paper with a UUID."""

    def __init__(self, uuid: str = "") -> None:
        self.name = f"paper {uuid}"
