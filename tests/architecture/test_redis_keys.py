"""Redis keys are spelled in one module."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("app", "benchmarks", "clients", "examples", "kernels", "privacy", "warpdesk_server", "workers")

# A key of ours in code: "warpdesk:" begins a string. Sentences of the command line have a space behind it.
KEY = re.compile(r"""['"]warpdesk:[a-z{%]""")


def test_only_one_module_spells_redis_keys() -> None:
    files = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in (".py", ".lua")]
    spelled = {str(path.relative_to(ROOT)) for path in files if KEY.search(path.read_text())}
    assert spelled == {"workers/queue/keys.py"}
