"""The CUDA modules of one process: each source is compiled and loaded once on its GPU, and has kernels by name."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from warpdesk_server.kernels.gpu.cubins import Cubins
from warpdesk_server.kernels.gpu.faults import CompileFailed, DeviceFault
from warpdesk_server.kernels.gpu.source import Source, inline

_Key = tuple[Path, tuple[tuple[str, str | int], ...]]


class Modules:
    """The CUDA modules that CuPy has loaded on the current GPU, from cubins.

    A source is read once, when it is first used: a file that is edited later counts from the next process on.
    """

    def __init__(self, cupy: Any, device: str, architecture: str, cubins: Cubins) -> None:
        self._cupy = cupy
        self._device = device
        self._architecture = architecture
        self._cubins = cubins
        self._errors = (cupy.cuda.runtime.CUDARuntimeError, cupy.cuda.driver.CUDADriverError)
        self._loaded: dict[_Key, tuple[str, Any]] = {}

    def function(self, source: Source, name: str) -> tuple[str, Any]:
        """The text of a CUDA source and one of its compiled kernels. Raises CompileFailed, or CUDA's own error."""
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
        """Turn an error of compilation in the block into CompileFailed; CUDA's own errors keep their number."""
        try:
            yield
        except (MemoryError, DeviceFault, *self._errors):
            raise
        except Exception as error:  # CompileError, or any exception of CuPy
            raise CompileFailed(f"{source.path.name} could not be compiled on {self._device}: {error}") from error
