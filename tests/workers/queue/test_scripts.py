"""What of the Lua is sent to Redis: of each script its own lines, and what they need."""

import re
from pathlib import Path

import pytest

from warpdesk_server.workers.queue import scripts
from warpdesk_server.workers.queue.scripts.assembly import assemble, link, read
from warpdesk_server.workers.queue.scripts.constants import CONSTANTS

FOLDER = Path(scripts.__path__[0])
NAMES = sorted(path.stem for path in FOLDER.glob("*.lua"))
DEFINED = re.compile(r"^local (?:function )?(\w+)", re.MULTILINE)


def test_every_file_is_a_script_that_is_loaded() -> None:
    assert {name: getattr(scripts, name.upper()) for name in NAMES} == {name: assemble(name) for name in NAMES}
    assert {*map(assemble, NAMES)} == {*scripts.SCRIPTS}


@pytest.mark.parametrize("name", NAMES)
def test_a_script_is_sent_without_comments_and_without_what_it_does_not_use(name: str) -> None:
    text = assemble(name)
    assert "--" not in text
    unused = [used for used in DEFINED.findall(text) if len(re.findall(rf"\b{used}\b", text)) == 1]
    assert unused == []
    table = text.partition("\n")[0]
    constants = re.findall(r"[{ ]([A-Z_]+) = ", table) if table.startswith("local const = ") else []
    assert set(constants) == set(re.findall(r"\bconst\.(\w+)", text))


def test_every_definition_and_every_constant_of_lua_is_in_some_script() -> None:
    sent = "\n".join(scripts.SCRIPTS)
    defined = {name for path in (FOLDER / "parts").glob("*.lua") for name in DEFINED.findall(path.read_text())}
    assert {name for name in defined if not re.search(rf"^local (function )?{name}\b", sent, re.MULTILINE)} == set()
    limits = {"PASSED", "WINDOW", "OWNERS", "AGING_SECONDS", "MAX_STRIKES"}
    assert limits <= CONSTANTS.keys() & set(re.findall(r"\bconst\.(\w+)", sent))


def test_renewing_a_lease_takes_a_kilobyte() -> None:
    """It did take twelve, as every script did."""
    assert len(assemble("renew")) < 1100


def test_a_definition_is_sent_with_those_that_it_needs_and_a_word_in_a_string_is_no_need() -> None:
    definitions = ["local function first() end", "local function second() return first() end", "local third = 1"]
    own = "return second('third', ARGV.third)"
    assert link(definitions, own) == "\n".join([*definitions[:2], own])


def test_a_constant_that_is_not_known_is_an_error() -> None:
    definitions, own = read("forbid")
    with pytest.raises(KeyError, match="FORBIDEN"):
        link(definitions, own.replace("const.FORBIDDEN ", "const.FORBIDEN "))


@pytest.mark.parametrize(
    "call", ["'jobs_dead_total'", "'jobs_dead_total', a, b(c)", "'jobs_of_the_dead', a", "name, a"]
)
def test_a_count_that_does_not_fit_its_metric_is_an_error(call: str) -> None:
    assert link([], "count('jobs_dead_total', b(c)) end") == "count('jobs_dead_total', b(c)) end"
    with pytest.raises(ValueError, match="a script calls count"):
        link([], f"count({call})")
