"""The interactive page comes whole from this server, and may run nothing else."""

import re
from hashlib import sha256

import httpx
import pytest

from tests.app.conftest import Live
from tests.conftest import ROOT

NAMED = re.compile(r"""(?:src|href)="([^"]+)\"""")


def _policy(answer: httpx.Response) -> dict[str, list[str]]:
    directives = (directive.split() for directive in answer.headers["Content-Security-Policy"].split(";"))
    return {name: sources for name, *sources in directives}


def test_every_file_the_page_names_comes_from_this_server(api: Live) -> None:
    page = api.http.get("/docs")

    names = NAMED.findall(page.text)
    answers = {name: api.http.get(str(httpx.URL(f"{api.url}/docs").join(name))) for name in names}

    assert page.headers["Content-Type"] == "text/html; charset=utf-8"
    assert {name: answer.status_code for name, answer in answers.items()} == dict.fromkeys(names, 200)
    assert {name: answer.headers["Content-Type"].partition(";")[0] for name, answer in answers.items()} == {
        "docs/swagger-ui.css": "text/css",
        "docs/favicon.png": "image/png",
        "docs/swagger-ui-bundle.js": "text/javascript",
        "docs/start.js": "text/javascript",
    }
    assert all(httpx.URL(f"{api.url}/docs").join(name).host == "127.0.0.1" for name in names)


def test_the_page_loads_the_document_that_describes_this_service(api: Live) -> None:
    script = api.http.get("/docs/start.js").text

    found = re.search(r'url: "([^"]+)"', script)

    assert found is not None
    document = api.http.get(str(httpx.URL(f"{api.url}/docs").join(found[1])))
    assert document.json()["info"]["title"] == "Warpdesk"


def test_the_script_has_what_the_page_calls(api: Live) -> None:
    bundle = api.http.get("/docs/swagger-ui-bundle.js").text

    assert "SwaggerUIBundle" in bundle
    assert "presets" in bundle


def test_the_page_runs_no_script_and_asks_nothing_of_another_server(api: Live) -> None:
    page = api.http.get("/docs")

    policy = _policy(page)

    assert policy["default-src"] == ["'none'"]
    assert policy["script-src"] == policy["connect-src"] == policy["style-src"] == ["'self'"]
    assert policy["img-src"] == ["'self'", "data:"]
    assert policy["frame-ancestors"] == policy["base-uri"] == ["'none'"]
    assert not re.search(r"<script(?![^>]* src=)|\son\w+=|://", page.text), "something inline, or elsewhere"
    assert "://" not in api.http.get("/docs/start.js").text


def test_the_files_of_swagger_ui_are_those_that_were_published() -> None:
    folder = ROOT / "app" / "http" / "swagger_ui"
    sums = dict(reversed(line.split()) for line in (folder / "SHA256SUMS").read_text().splitlines())
    digests = {file.name: sha256(file.read_bytes()).hexdigest() for file in folder.iterdir()}
    assert {name: digests.pop(name, None) for name in sums} == sums
    assert digests.keys() == {"README.md", "SHA256SUMS"}


@pytest.mark.parametrize(
    "path",
    ["/docs/other.js", "/docs/redoc.standalone.js", "/docs/..%2fcore.py", "/docs/", "/redoc", "/docs/oauth2-redirect"],
)
def test_nothing_else_of_the_package_is_served(api: Live, path: str) -> None:
    answer = api.http.get(path)

    assert (answer.status_code, answer.json()["code"]) == (404, "not-found")


def test_an_answer_that_is_no_page_may_load_nothing(api: Live) -> None:
    assert _policy(api.http.get("/openapi.json")) == {"default-src": ["'none'"], "frame-ancestors": ["'none'"]}
