"""Checks of a GPU kernel's launch: its shape, and its arguments against the parameters in its CUDA source."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from warpdesk_server.kernels.gpu.faults import LaunchFailed


@dataclass(frozen=True)
class Parameter:
    """The type of a CUDA kernel's parameter: kind "f", "i", "u" or "b" with its bytes, or "p" and its pointee.

    An unknown type has kind "" and takes any NumPy scalar; an unknown pointee takes any array.
    """

    kind: str
    size: int
    pointee: str = ""
    pointee_size: int = 0


_TYPES = {
    "u32": ("u", 4),
    "u64": ("u", 8),
    "i32": ("i", 4),
    "i64": ("i", 8),
    "f32": ("f", 4),
    "f64": ("f", 8),
    "unsigned char": ("u", 1),
    "unsigned int": ("u", 4),
    "unsigned": ("u", 4),
    "unsigned long long": ("u", 8),
    "int": ("i", 4),
    "long long": ("i", 8),
    "float": ("f", 4),
    "double": ("f", 8),
    "bool": ("b", 1),
}
_KIND_NAMES = {"f": "a float", "i": "a signed integer", "u": "an unsigned integer", "b": "a bool"}
_ALIAS = re.compile(
    r"\btypedef\s+(?P<old>[\w ]+?)\s+(?P<new>\w+)\s*;|\busing\s+(?P<name>\w+)\s*=\s*(?P<is>[\w ]+?)\s*;"
)
_MACRO = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(?P<name>\w+)[ \t]+(?P<is>[\w ]+?)[ \t]*$", re.MULTILINE)


def parameters(text: str, name: str) -> tuple[Parameter, ...] | None:
    """Parse the parameters of a kernel from its CUDA source; None if versions of it (#if) differ."""
    code = re.sub(r"//[^\n]*|/\*.*?\*/", " ", text, flags=re.DOTALL)
    aliases: dict[str, str] = {}
    for match in (*_MACRO.finditer(code), *_ALIAS.finditer(code)):
        names = match.groupdict()
        new, old = names.get("new") or names["name"], names.get("old") or names["is"]
        # A type name with two meanings (#if) stays unknown instead of being guessed.
        aliases[new] = old if aliases.get(new, old) == old else ""
    found = {
        tuple(_parameter(part, aliases) for part in match[1].split(",") if part.strip() not in ("", "void"))
        for match in re.finditer(rf"__global__[^;{{}}]*?\b{name}\s*\(([^)]*)\)\s*\{{", code)
    }
    return found.pop() if len(found) == 1 else None


def _parameter(text: str, aliases: Mapping[str, str]) -> Parameter:
    words = [
        word
        for word in re.findall(r"\w+", text)
        if word not in ("const", "volatile", "__restrict__", "__grid_constant__")
    ]
    declared = " ".join(words[:-1])  # the last word is the parameter's name
    for _ in aliases:
        if declared in _TYPES or declared not in aliases:
            break
        declared = aliases[declared]
    kind, size = _TYPES.get(declared, ("", 0))
    return Parameter("p", 8, kind, size) if "*" in text else Parameter(kind, size)


def check_arguments(name: str, expected: tuple[Parameter, ...], args: tuple[Any, ...], array: type) -> None:
    """Raise TypeError if a launch's arguments do not have the types of the CUDA kernel's parameters.

    CuPy does not check: it passes a Python float as eight bytes and an int as int64, whatever the parameter is. `array`
    is the type of device arrays.
    """
    if len(args) != len(expected):
        raise TypeError(f"{name} takes {len(expected)} arguments, got {len(args)}")
    for position, (value, parameter) in enumerate(zip(args, expected, strict=True)):
        at = f"argument {position} of {name}"
        if parameter.kind == "p":
            if not isinstance(value, array):
                raise TypeError(f"{at} is a pointer, got {type(value).__name__}")
            _check_array(at, parameter, value)
        elif not isinstance(value, np.generic):
            raise TypeError(f"{at} must be a NumPy scalar, got {type(value).__name__} {value!r}")
        elif parameter.kind and (value.dtype.kind, value.itemsize) != (parameter.kind, parameter.size):
            raise TypeError(
                f"{at} is {_KIND_NAMES[parameter.kind]} of {parameter.size} bytes, got numpy.{value.dtype.name}"
            )


def _check_array(at: str, parameter: Parameter, value: Any) -> None:
    if not value.flags.c_contiguous:
        raise TypeError(f"{at}: the array of shape {value.shape} is not contiguous")
    same = {"i": "integer", "u": "integer"}  # signed and unsigned have the same bytes, and kernels reinterpret them
    kind = parameter.pointee
    if kind and (same.get(kind, kind), parameter.pointee_size) != (
        same.get(value.dtype.kind, value.dtype.kind),
        value.itemsize,
    ):
        raise TypeError(f"{at} points to {_KIND_NAMES[kind]} of {parameter.pointee_size} bytes, got {value.dtype}")


def check_shape(name: str, grid: tuple[int, ...], block: tuple[int, ...]) -> None:
    """Raise LaunchFailed if the grid or block of a launch is empty or too large. CuPy turns zero blocks into one."""
    if not (1 <= len(grid) <= 3 and 1 <= len(block) <= 3):
        raise LaunchFailed(f"{name}: grid {grid} and block {block} must have 1 to 3 dimensions", 1, (name,))
    if min(*grid, *block) < 1 or grid[0] > 2**31 - 1 or max(grid[1:], default=1) > 65_535:
        raise LaunchFailed(f"{name}: a grid {grid} of blocks {block} cannot be launched", 1, (name,))
