"""The assembly of a Lua script from its file, the parts that it includes, and the constants that it uses.

A script is `<name>.lua`; a line `--@include <part>` takes in `parts/<part>.lua`, which may include others. Of the parts
only those definitions are sent to Redis that the script needs, without comments.
"""

import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from warpdesk_server.workers.metrics import COUNTED
from warpdesk_server.workers.queue.scripts.constants import CONSTANTS, Constant

_FOLDER = Path(__file__).parent
_INCLUDE = re.compile(r"^--@include (\w+)$", re.MULTILINE)
_COMMENT = re.compile(r"\s*--.*")
_DEFINITION = re.compile(r"^local (?:function )?(\w+)")
_STRING = re.compile(r"'[^']*'")
_NAME = re.compile(r"(?<![.\w])[a-z]\w*")


def assemble(name: str) -> str:
    """The text of a Lua script, as it is sent to Redis."""
    return link(*read(name))


def read(name: str) -> tuple[Sequence[str], str]:
    """The definitions in the parts that a Lua script includes, in order, and the script's own lines."""
    source = (_FOLDER / f"{name}.lua").read_text()
    parts: dict[str, None] = {}
    _collect(source, parts)
    return [definition for part in parts for definition in _definitions(part)], _bare(source)


def link(definitions: Sequence[str], own: str) -> str:
    """A Lua script of its own lines, the definitions that they need, and the constants that both use."""
    kept, names = [own], _names(own)
    for definition in reversed(definitions):  # one uses only those before it
        found = _DEFINITION.match(definition)
        if found is not None and found[1] in names:
            kept.append(definition)
            names |= _names(definition)
    text = "\n".join(reversed(kept))
    _check_counts(text)
    used = sorted(set(re.findall(r"\bconst\.(\w+)", text)))
    table = ", ".join(f"{name} = {_lua(CONSTANTS[name])}" for name in used)
    return f"local const = {{{table}}}\n{text}" if used else text


def _check_counts(lua: str) -> None:
    """Raise ValueError where a Lua script counts a metric that is not declared, or with other labels than it has."""
    for call in re.findall(r"(?<!function )\bcount\((.*?\)?)\)(?=\s|$)", lua):
        name, *labels = (argument.strip() for argument in call.split(","))
        metric = COUNTED.get(name.strip("'"))
        if metric is None or metric.source != "transition" or len(labels) != len(metric.labels):
            problem = "which is not declared" if metric is None else f"which has the labels {metric.labels}"
            raise ValueError(f"a script calls count({call}), {problem}")


def _collect(source: str, parts: dict[str, None]) -> None:
    """Add the parts that a Lua script includes, each after the parts that it includes itself."""
    for part in _INCLUDE.findall(source):
        if part not in parts:
            _collect(_part(part), parts)
            parts[part] = None


@cache
def _part(name: str) -> str:
    return (_FOLDER / "parts" / f"{name}.lua").read_text()


@cache
def _definitions(part: str) -> Sequence[str]:
    return re.split(r"\n(?=local )", _bare(_part(part)))


def _bare(source: str) -> str:
    return re.sub(r"\n{2,}", "\n", _COMMENT.sub("", source)).strip()


def _names(lua: str) -> set[str]:
    return set(_NAME.findall(_STRING.sub("", lua)))


def _lua(value: Constant) -> str:
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{name} = {number}' for name, number in value.items())}}}"
    return f"{{{', '.join(map(repr, value))}}}" if isinstance(value, tuple) else repr(value)
