"""uvicorn's internals: the installed release has those that `app/http/reception.py` is built on."""

import ast
import inspect
import re
from importlib.metadata import version

import pytest
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from warpdesk_server.app.http import reception

INTERNALS = {
    HttpToolsProtocol: {
        "_unset_keepalive_if_required", "_unsupported_upgrade_warning", "app", "app_state", "client", "connection_lost",
        "connection_made", "cycle", "data_received", "eof_received", "flow", "headers", "loop", "on_body",
        "on_headers_complete", "on_message_begin", "on_message_complete", "on_response_complete", "parser",
        "pause_writing", "pipeline", "resume_writing", "send_400_response", "server", "server_state", "shutdown",
        "timeout_keep_alive", "timeout_keep_alive_handler", "timeout_keep_alive_task", "transport",
    },
    RequestResponseCycle: {
        "body", "disconnected", "keep_alive", "message_event", "more_body", "response_complete", "response_started",
        "transport", "waiting_for_100_continue",
    },
    FlowControl: {"pause_reading", "read_paused"},
}  # fmt: skip


def attributes(owner: type) -> set[str]:
    """The names that a class has, or gives its instances."""
    nodes = ast.walk(ast.parse(inspect.getsource(owner)))
    return {*dir(owner), *(node.attr for node in nodes if isinstance(node, ast.Attribute))}


@pytest.mark.parametrize("owner", INTERNALS, ids=lambda owner: owner.__name__)
def test_the_installed_release_has_what_reception_uses(owner: type) -> None:
    missing = sorted(INTERNALS[owner] - attributes(owner))
    assert missing == [], f"uvicorn {version('uvicorn')} has no {owner.__name__}.{missing}: mend app/http/reception.py"


def test_every_attribute_of_a_cycle_and_of_flow_control_that_reception_uses_is_listed() -> None:
    text = inspect.getsource(reception)
    for name, owner in (("cycle", RequestResponseCycle), ("flow", FlowControl)):
        assert {*re.findall(rf"\b_?{name}\.([a-z]\w*)", text)} == INTERNALS[owner]


def test_every_attribute_of_uvicorns_protocol_that_reception_uses_is_listed() -> None:
    text = inspect.getsource(reception._Http) + inspect.getsource(reception.Reception)
    used = {*re.findall(r"(?:self|super\(\)|_http)\.(\w+)", text), *vars(reception._Http)}
    assert used & attributes(HttpToolsProtocol) - {*dir(object), "__module__"} <= INTERNALS[HttpToolsProtocol]
