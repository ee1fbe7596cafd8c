"""The lint rule for plain words: no identifier is a bare participle of saying or knowing (CONTRIBUTING.md, Words)."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = (
    "app",
    "benchmarks",
    "clients",
    "deploy",
    "docs",
    "examples",
    "kernels",
    "privacy",
    "tests",
    "warpdesk_server",
    "workers",
)

# Each says that something happened to a value and not what the value is.
BANNED = {"asked", "deed", "heard", "horse", "known", "said", "seen", "told", "wished"}
_ANY = re.compile(rf"\b_*(?:{'|'.join(BANNED)})_*\b", re.IGNORECASE)


def names(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Every name that the code gives to something, with its line."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name, node.lineno
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()) | ast.arg(arg=name):
                yield name, node.lineno
            case ast.alias(asname=str(name)) | ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)):
                yield name, node.lineno


def banned(text: str) -> list[tuple[str, int]]:
    if _ANY.search(text) is None:  # nor has the tree
        return []
    return [(name, line) for name, line in names(ast.parse(text)) if name.strip("_").lower() in BANNED]


def test_no_name_is_a_bare_participle() -> None:
    found = []
    for path in (path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))):
        found += [f"{path.relative_to(ROOT)}:{line}: {name}" for name, line in banned(path.read_text())]
    assert found == []


@pytest.mark.parametrize(
    "text",
    [
        "told = 1",
        "def asked(): ...",
        "class Told: ...",
        "def f(known): ...",
        "def f(*, _seen=()): ...",
        "self.heard = 1",
        "for told in (): ...",
        "told: int",
        "import a as told",
        "with a() as told: ...",
        "[1 for told in ()]",
    ],
)
def test_a_banned_name_is_found(text: str) -> None:
    assert len(banned(text)) == 1


@pytest.mark.parametrize("text", ["report = known_kinds", "print(told)", "a.told()", "'told'", "def test_told(): ..."])
def test_other_names_and_uses_of_names_pass(text: str) -> None:
    assert banned(text) == []
