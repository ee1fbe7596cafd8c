"""Write the lists of docs/reference/indicators.md from the declared indicators: `make indicators`.

A list stands between `<!-- table: NAME -->` and `<!-- end -->`; NAME is a key of TABLES. The words around it are
written by hand.
"""

import ast
import inspect
import json
import re
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

from warpdesk_server.kernels.catalogue import OPERATIONS
from warpdesk_server.kernels.indicators.declared import DECLARED, INDICATORS
from warpdesk_server.kernels.indicators.expression import own_functions
from warpdesk_server.kernels.operation import Operation

HERE = Path(__file__).resolve().parent
README = HERE.parent / "README.md"
PAGE = HERE / "reference" / "indicators.md"
_TABLE = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
_GROUPS = {
    "averages": "Averages and bands",
    "oscillators": "Momentum and oscillators",
    "volatility": "Volatility",
    "volume": "Volume",
    "rolling": "Statistics and signals",
    "candlesticks": "Candlesticks",
}


def written(page: str) -> str:
    """The page with each part that is made from declarations made anew."""
    return _TABLE.sub(lambda match: f"{match[1]}{TABLES[match[2]]()}{match[3]}", page)


def _indicators() -> str:
    parts = []
    for module, title in _GROUPS.items():
        own = [each for each in DECLARED if INDICATORS[each.name].build.__module__.endswith(f".{module}")]
        parts += [f"## {title}\n", *(_described(operation) for operation in own)]
    return "\n".join(parts)


def _described(operation: Operation) -> str:
    name = operation.name
    inputs = ", ".join(f"`{each.shown}`" for each in operation.inputs)
    picture = f"![{name} of its example](../images/indicators/{name}.svg)\n"
    lines = [f"### `{name}`\n", f"{operation.summary}\n", picture, *_formula(name), f"Inputs: {inputs}.\n"]
    schema: dict[str, Any] = operation.params.model_json_schema()["properties"]
    rows = [
        f"| `{name}` | {_default(field)} | {_range(field)} | {_cell(field.get('description', ''))} |"
        for name, field in schema.items()
        if name != "nan_policy"
    ]
    if rows:
        lines += ["| parameter | default | values | |", "|---|---|---|---|", *rows, ""]
    params = operation.params(**operation.example.params)
    first = INDICATORS[name].program(params, 8).first
    lines += ["| output | | first bar with a number in the example, from 0 |", "|---|---|---|"]
    for output in operation.outputs:
        doc = _cell(output.doc.removesuffix("; of the inputs' shape and dtype"))
        lines.append(f"| `{output.name}` | {doc} | {first[output.name]} |")
    example = ", ".join(f"{each} {json.dumps(value)}" for each, value in operation.example.params.items())
    lines += ["", f"Example: {example or 'the defaults'}.\n"]
    return "\n".join(lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _formula(name: str) -> list[str]:
    """What an indicator computes, as its declaration says it."""
    build = INDICATORS[name].build
    place = Path(inspect.getfile(build)).name
    lines = textwrap.dedent(inspect.getsource(build)).splitlines()
    (function,) = ast.parse("\n".join(lines)).body
    assert isinstance(function, ast.FunctionDef)  # noqa: S101
    body = textwrap.dedent("\n".join(lines[function.body[0].lineno - 1 :]))
    source = f"in [{place}](../../kernels/indicators/{place})"
    if "\n" not in body:
        return [f"Formula: `{body.removeprefix('return ')}` {source}.\n"]
    return [f"<details><summary>Formula</summary>\n\nDeclared {source}:\n\n```text\n{body}\n```\n\n</details>\n"]


def _default(field: dict[str, Any]) -> str:
    return f"`{json.dumps(field['default'])}`" if "default" in field else "required"


def _range(field: dict[str, Any]) -> str:
    if "enum" in field:
        return ", ".join(f"`{json.dumps(value)}`" for value in field["enum"])
    if "const" in field:
        return f"`{json.dumps(field['const'])}`"
    if field.get("type") == "boolean":
        return "`true`, `false`"
    if "anyOf" in field:
        return f"{_range(field['anyOf'][0])}, or a list"
    low = f"{field['minimum']:,}" if "minimum" in field else f"above {field.get('exclusiveMinimum', 0):,}"
    return f"{low} to {field['maximum']:,}"


def _expressions() -> str:
    rows = []
    for name, series, params in own_functions():
        fields = [f"`{each}`" if value is ... else f"`{each}` {json.dumps(value)}" for each, value in params.items()]
        words = "`close` or `of`" if series == ("close", "of") else ", ".join(f"`{each}`" for each in series)
        rows.append(f"| `{name}` | {words} | {', '.join(fields)} |")
    return "\n".join(["| `op` | series | parameters, with their defaults |", "|---|---|---|", *rows, ""])


def _twins() -> str:
    rows = []
    for operation in OPERATIONS.values():
        for twin in operation.same_as:
            own = [name for name in twin.outputs if len(operation.outputs) > 1]
            fixed = [f"`{name}` {json.dumps(value)}" for name, value in twin.fixed.items()]
            theirs = [f"their `{name}` {value}" for name, value in twin.theirs.items()]
            outputs = f" ({', '.join(f'`{name}`' for name in own)})" if own else ""
            rows.append((twin.function, f"`{operation.name}`{outputs}", ", ".join(fixed + theirs)))
    lines = [f"| `{function}` | {ours} | {words} |" for function, ours, words in sorted(rows)]
    return "\n".join(["| TA-Lib | here | with |", "|---|---|---|", *lines, ""])


TABLES: dict[str, Callable[[], str]] = {"indicators": _indicators, "expressions": _expressions, "talib": _twins}


def counted(readme: str) -> str:
    """The README with the numbers of indicators and of TA-Lib's functions made anew."""
    functions = {twin.function for operation in OPERATIONS.values() for twin in operation.same_as}
    readme = re.sub(r"\| \d+ more: `macd`", f"| {sum(bool(each.counted_as) for each in DECLARED)} more: `macd`", readme)
    return re.sub(r"\d+ of its 201 functions", f"{len(functions)} of its 201 functions", readme)


if __name__ == "__main__":
    README.write_text(counted(README.read_text()))
    PAGE.write_text(written(PAGE.read_text()))
