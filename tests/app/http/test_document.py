"""The OpenAPI document is one that generators of clients take: named operations, no clash of names, no endless type."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from warpdesk_server.app.main import create_app
from warpdesk_server.app.settings import Settings

# Types that every program has in TypeScript (ES2024 and DOM), Python, Java, C#, Swift, Rust or Go. A generated class
# of that name would hide them.
_TAKEN = {
    *("Any", "Array", "Blob", "Body", "Boolean", "Box", "Buffer", "Byte", "Cache", "Class", "Client", "Data", "Date"),
    *("Decimal", "Dict", "Document", "Double", "Element", "Enum", "Error", "Event", "Exception", "File", "Float"),
    *("FormData", "Function", "Headers", "History", "Int", "Integer", "Iterator", "List", "Location", "Lock", "Long"),
    *("Map", "Math", "Message", "Module", "Node", "None", "Notification", "Number", "Object", "Option", "Optional"),
    *("Performance", "Process", "Promise", "Proxy", "Range", "Record", "Request", "Response", "Self", "Set", "Short"),
    *("Storage", "Str", "String", "Symbol", "Task", "Text", "Thread", "Time", "Tuple", "Type", "Url", "Void", "Window"),
}


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    home: Path = tmp_path_factory.mktemp("home")
    written: dict[str, Any] = create_app(Settings(home=home)).openapi()
    return written


def _operations(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [route for path in document["paths"].values() for route in path.values()]


def _references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        for name, value in node.items():
            if name == "$ref":
                yield value.rpartition("/")[2]
            else:
                yield from _references(value)
    elif isinstance(node, list):
        for value in node:
            yield from _references(value)


def test_operations_have_names_of_their_own(document: dict[str, Any]) -> None:
    names = [route["operationId"] for route in _operations(document)]
    assert len(names) == len(set(names))
    assert [name for name in names if not re.fullmatch(r"[a-z]+(_[a-z]+)*", name)] == []


def test_every_operation_has_a_summary_and_a_tag_that_is_described(document: dict[str, Any]) -> None:
    described = {tag["name"]: tag["description"] for tag in document["tags"]}
    for route in _operations(document):
        assert route["summary"]
        assert [tag for tag in route["tags"] if not described.get(tag)] == []
    assert {tag for route in _operations(document) for tag in route["tags"]} == described.keys()
    assert document["info"]["description"]


def test_no_component_has_the_name_of_a_type_that_languages_have(document: dict[str, Any]) -> None:
    names = document["components"]["schemas"].keys()
    # Generators turn `rsi_params` into RsiParams.
    assert {"".join(part.capitalize() for part in name.split("_")) for name in names} & _TAKEN == set()
    assert len({name.replace("_", "").lower() for name in names}) == len(names)


def test_no_component_contains_itself_and_each_that_is_named_exists(document: dict[str, Any]) -> None:
    components = document["components"]["schemas"]
    parts = {name: set(_references(schema)) for name, schema in components.items()}
    assert set(_references(document)) - parts.keys() == set()
    for name in parts:
        inside, fresh = set[str](), {name}
        while fresh:
            fresh = {part for each in fresh for part in parts[each]} - inside
            inside |= fresh
        assert name not in inside, f"{name} contains itself"
