"""PromQL taken apart as far as the tests need it: what an alert compares, and which series an expression names."""

import re
from collections.abc import Iterator

_TOKEN = re.compile(r"""'[^']*'|"[^"]*"|[(){}\[\]]|[A-Za-z_:][\w:]*|>=|<=|==|!=|=~|!~|\S""")
_MATCHING = {"on", "ignoring", "group_left", "group_right"}
_SETS = {"and", "or", "unless"}
_COMPARES = {">", "<", ">=", "<=", "==", "!="}
_NUMBERS = re.compile(r"[\d.\s*+/e-]+")
_SELECTOR = re.compile(r"\b(warpdesk[_:][\w:]+)(\{[^}]*\})?")


def operands(expr: str) -> Iterator[str]:
    """What is compared, joined or missed in an expression, without numbers: each has to have samples for it to mean
    anything.

    `a / (b > 0) > 2 and on (x) c == 1` has `a / (b > 0)` and `c`.
    """
    expr = expr.strip()
    for among in (_SETS, _COMPARES):
        parts = _split(expr, among)
        if len(parts) > 1:
            for part in parts:
                yield from operands(part)
            return
    if expr.startswith("(") and _closing(expr) == len(expr) - 1:
        yield from operands(expr[1:-1])
    elif expr.startswith("absent(") and expr.endswith(")"):
        yield from operands(expr[len("absent(") : -1])
    elif not _NUMBERS.fullmatch(expr):
        yield expr


def selectors(expr: str) -> set[str]:
    """The series of ours that an expression names, with what it demands of their labels."""
    return {name + (matchers or "") for name, matchers in _SELECTOR.findall(expr)}


def _split(expr: str, operators: set[str]) -> list[str]:
    """At each operator outside brackets; what follows one to say how labels match is dropped."""
    parts, depth, begin = [], 0, 0
    for token in _TOKEN.finditer(expr):
        if token[0] in "([{":
            depth += 1
        elif token[0] in ")]}":
            depth -= 1
        elif depth == 0 and token[0] in operators:
            parts.append(expr[begin : token.start()])
            begin = token.end() + _matching(expr[token.end() :])
    return [*parts, expr[begin:]]


def _matching(rest: str) -> int:
    """How long `on (x) group_left ()` at its beginning is."""
    length = 0
    while (word := re.match(r"\s*([a-z_]+|bool)\s*", rest[length:])) and word[1] in {*_MATCHING, "bool"}:
        length += word.end()
        if rest[length : length + 1] == "(":
            length += _closing(rest[length:]) + 1
    return length


def _closing(expr: str) -> int:
    """Where the bracket closes that `expr` begins with."""
    depth = 0
    for token in _TOKEN.finditer(expr):
        depth += token[0] in "([{"
        depth -= token[0] in ")]}"
        if depth == 0:
            return token.end() - 1
    raise ValueError(f"a bracket is not closed: {expr}")
