"""Published reference cases beside the repository, where they are here."""

import json
from pathlib import Path
from typing import Any

import pytest

_FILE = Path(__file__).parents[4] / "shared" / "reference" / "quant_reference_cases.json"


def reference(group: str) -> list[dict[str, Any]]:
    """The cases of one group."""
    if not _FILE.exists():
        pytest.skip(f"{_FILE} is not here")
    groups = json.loads(_FILE.read_text())["groups"]
    found: list[dict[str, Any]] = next(each["cases"] for each in groups if each["id"] == group)
    return found
