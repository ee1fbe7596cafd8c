"""Compiled CUDA modules of one process: each source is compiled once for a GPU, and its kernels are found by name."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kernels.cuda import COMPILE_OPTIONS, CompileFailed, DeviceFault, Source, inline

_Key = tuple[Path, tuple[tuple[str, str | int], ...]]


class Modules:
    """What CuPy compiles for the current device. A source counts as it was when it was first used: a file edited later
    belongs to the next process."""

    def __init__(self, cupy: Any, device: str) -> None:
        self._cupy = cupy
        self._device = device
        self._errors = (cupy.cuda.runtime.CUDARuntimeError, cupy.cuda.driver.CUDADriverError)
        self._loaded: dict[_Key, tuple[str, Any]] = {}

    def function(self, source: Source, name: str) -> tuple[str, Any]:
        """The text of a source and its compiled kernel. Raises CompileFailed, or what CUDA itself says."""
        key = source.path, tuple(source.defines.items())
        text = self._loaded[key][0] if key in self._loaded else inline(source)
        with self._compiling(source):
            if key not in self._loaded:
                # CuPy adds -ftz=true, --device-as-default-execution-space and -arch.
                self._loaded[key] = text, self._cupy.RawModule(code=text, options=COMPILE_OPTIONS[:2], backend="nvrtc")
            function = self._loaded[key][1].get_function(name)
            function.compile()
        return text, function

    @contextmanager
    def _compiling(self, source: Source) -> Iterator[None]:
        """Turn whatever the compiler raises into CompileFailed; what CUDA itself says keeps its number."""
        try:
            yield
        except (MemoryError, DeviceFault, *self._errors):
            raise
        except Exception as error:  # CompileException, NVRTCError, OSError of the cache, RuntimeError about headers
            raise CompileFailed(f"{source.path.name} could not be compiled on {self._device}: {error}") from error
