"""Doubling that takes its time, and dies of one number."""

import os
import signal
import time
from typing import Any

import numpy as np


def double(params: Any, values: np.ndarray) -> dict[str, Any]:
    memory = np.ones(params.memory, np.uint8)
    time.sleep(params.seconds)
    del memory
    if (values == params.poison).any():
        os.kill(os.getpid(), signal.SIGKILL)
    return {"doubled": values * 2.0}
