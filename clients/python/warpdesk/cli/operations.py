"""`warpdesk operations`: what the service can compute, and how one operation is asked for."""

import argparse
import json
import shlex
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from warpdesk.cli.asking import add_service, print_json, print_table
from warpdesk.cli.command import Subcommands, fail

if TYPE_CHECKING:
    from warpdesk.client import Client
    from warpdesk.models import OperationDescription


def add(commands: Subcommands) -> None:
    operations = commands.add_parser("operations", help="list what the service can compute, or describe one operation")
    operations.add_argument("name", nargs="?", help="an operation, or a part of the names to list")
    add_service(operations, _operations)


def _operations(client: "Client", chosen: argparse.Namespace) -> int:
    found = client.operations()
    if chosen.name in found:
        return _describe(found[chosen.name], as_json=chosen.json)
    named = [each for name, each in found.items() if chosen.name is None or chosen.name in name]
    if not named:
        near = get_close_matches(chosen.name, found)
        hint = f"near are {', '.join(near)}; " if near else ""
        return fail(f"there is no operation {chosen.name!r}; {hint}`warpdesk operations` lists all {len(found)}")
    if chosen.json:
        print_json([each.model_dump(mode="json") for each in named])
    else:
        print_table(["operation", "computes"], [[each.name, each.summary] for each in named], "")
    return 0


def _describe(operation: "OperationDescription", *, as_json: bool) -> int:
    if as_json:
        print_json(operation.model_dump(mode="json"))
        return 0
    print(f"{operation.name}: {operation.summary}\n")
    required = operation.params.get("required", [])
    rows = [
        [
            f"-p {name}",
            _type(schema),
            "required" if name in required else _default(schema),
            schema.get("description", ""),
        ]
        for name, schema in operation.params.get("properties", {}).items()
    ]
    print_table(["parameter", "type", "default", "means"], rows, "It has no parameters.")
    print()
    inputs = [
        [f"-i {each.name}", "/".join(each.dtypes), "required" if each.required else "", each.doc]
        for each in operation.inputs
        if each.alias_of is None
    ]
    print_table(["input", "dtype", "", "is"], inputs, "It has no inputs.")
    print()
    print_table(["output", "kind", "is"], [[each.name, each.kind, each.doc] for each in operation.outputs], "")
    print(f"\n{_example(operation)}")
    return 0


def _type(schema: dict[str, Any]) -> str:
    if "enum" in schema:
        return "|".join(str(value) for value in schema["enum"])
    if "anyOf" in schema:
        return "|".join(dict.fromkeys(_type(part) for part in schema["anyOf"]))
    if "$ref" in schema:
        return "object"
    return str(schema.get("const", schema.get("type", "any")))


def _default(schema: dict[str, Any]) -> str:
    return json.dumps(schema["default"]) if "default" in schema else ""


def _example(operation: "OperationDescription") -> str:
    """A command line with the parameters of the operation's example."""
    params = [
        f"-p {shlex.quote(f'{name}={value if isinstance(value, str) else json.dumps(value)}')}"
        for name, value in operation.example.get("params", {}).items()
    ]
    inputs = [f"-i {name}=FILE.csv:COLUMN" for name in operation.example.get("inputs", {})]
    return " ".join(["warpdesk submit", operation.name, *params, *inputs])
