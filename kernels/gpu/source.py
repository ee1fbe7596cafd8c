"""A CUDA source: a `.cu` file with its macros, the text that is compiled, and the compiler's options."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

_KERNELS = Path(__file__).resolve().parents[1]

# NVRTC's options, the same wherever a kernel is compiled. Products are never contracted into fma, so that the CPU
# rounds alike. Denormals of float32 are flushed, as in the code that CuPy itself compiles around a library's call.
COMPILE_OPTIONS = ("--std=c++17", "--fmad=false", "-ftz=true", "--device-as-default-execution-space")


@dataclass(frozen=True)
class Source:
    """A CUDA source: a `.cu` file and its macros. Headers that it includes as "device/x.cuh" are inlined."""

    path: Path
    defines: Mapping[str, str | int] = field(default_factory=dict)

    def __hash__(self) -> int:
        return hash((self.path, tuple(self.defines.items())))


_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(?P<what>[<"][^>"]*[>"]).*$', re.MULTILINE)


def inline(source: Source) -> str:
    """The complete text of a CUDA source: its macros defined, and every `#include "device/x.cuh"` replaced once.

    A compiled kernel is cached by this text (kernels.gpu.cubins). Marks (#line) make the compiler's messages refer to
    the original files.
    """
    included: set[str] = set()

    def expand(path: Path, shown: str) -> str:
        text = path.read_text()

        def include(match: re.Match[str]) -> str:
            line = text.count("\n", 0, match.start()) + 1
            name = match["what"][1:-1]
            if match["what"][0] == "<" or not re.fullmatch(r"device/\w+\.cuh", name):
                raise ValueError(f'{shown}:{line} includes {match["what"]}; kernels include only "device/<name>.cuh"')
            if name in included:
                return ""
            included.add(name)
            return f'#line 1 "{name}"\n{expand(_KERNELS / name, name)}\n#line {line + 1} "{shown}"'

        return _INCLUDE.sub(include, text)

    defines = "".join(f"#define {name} {value}\n" for name, value in source.defines.items())
    return f'{defines}#line 1 "{source.path.name}"\n{expand(source.path, source.path.name)}'
