"""Every error code explains itself at the address that its problem document names."""

from tests.app.conftest import Live
from warpdesk_server.app.kit.errors import CODES
from warpdesk_server.app.kit.remedies import REMEDIES


def test_every_code_has_a_meaning_and_a_remedy_in_sentences() -> None:
    assert REMEDIES.keys() == CODES.keys()
    assert [
        code for code, texts in REMEDIES.items() if not all(text[:1].isupper() or text[0] == "`" for text in texts)
    ] == []
    for code, texts in REMEDIES.items():
        for text in texts:
            assert text.endswith("."), code
            assert text[0] == "`" or text[0].isupper(), code


def test_the_type_of_a_problem_leads_to_what_helps(api: Live) -> None:
    refused = api.http.post("/v1/jobs", json={"operation": "nonsense"}).json()

    explained = api.http.get(refused["type"]).json()

    assert explained == {
        "code": "unknown-operation",
        "status": 422,
        "title": refused["title"],
        "retryable": False,
        "meaning": "There is no operation of that name.",
        "remedy": "`GET /v1/operations` lists them.",
    }
