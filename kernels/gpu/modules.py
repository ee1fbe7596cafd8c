"""Compiled CUDA modules of one process: each source is loaded once on its GPU, and its kernels are found by name."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from warpdesk_server.kernels.gpu.cubins import Cubins
from warpdesk_server.kernels.gpu.faults import CompileFailed, DeviceFault
from warpdesk_server.kernels.gpu.source import Source, inline

_Key = tuple[Path, tuple[tuple[str, str | int], ...]]


class Modules:
    """What CuPy has loaded on the current device, from cubins. A source counts as it was when it was first used: a file
    edited later belongs to the next process."""

    def __init__(self, cupy: Any, device: str, architecture: str, cubins: Cubins) -> None:
        self._cupy = cupy
        self._device = device
        self._architecture = architecture
        self._cubins = cubins
        self._errors = (cupy.cuda.runtime.CUDARuntimeError, cupy.cuda.driver.CUDADriverError)
        self._loaded: dict[_Key, tuple[str, Any]] = {}

    def function(self, source: Source, name: str) -> tuple[str, Any]:
        """The text of a source and its compiled kernel. Raises CompileFailed, or what CUDA itself says."""
        key = source.path, tuple(source.defines.items())
        text = self._loaded[key][0] if key in self._loaded else inline(source)
        with self._compiling(source):
            if key not in self._loaded:
                self._loaded[key] = text, self._load(text, source.path.name)
            return text, self._loaded[key][1].get_function(name)

    def _load(self, text: str, name: str) -> Any:
        module = self._cupy.cuda.function.Module()
        module.load(self._cubins.cubin(text, name, self._architecture))
        return module

    @contextmanager
    def _compiling(self, source: Source) -> Iterator[None]:
        """Turn whatever compiling raises into CompileFailed; what CUDA itself says keeps its number."""
        try:
            yield
        except (MemoryError, DeviceFault, *self._errors):
            raise
        except Exception as error:  # CompileError, what CuPy likes
            raise CompileFailed(f"{source.path.name} could not be compiled on {self._device}: {error}") from error
