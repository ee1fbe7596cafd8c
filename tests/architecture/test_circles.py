"""No module imports itself through others, not even for types alone."""

import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp
import pytest


def circle(*packages: str) -> list[str]:
    """The modules of one circle of imports within these packages, or none. Imports for types alone count."""
    graph = grimp.build_graph(*packages, cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert circle("warpdesk", "warpdesk_server") == []


def test_a_circle_is_found_also_where_it_is_of_types_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    package = tmp_path / "circular"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "one.py").write_text("from circular import two\n")
    (package / "two.py").write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from circular.one import x\n"
    )
    assert set(circle("circular")) == {"circular.one", "circular.two"}
