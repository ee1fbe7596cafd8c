"""The Idempotency-Key of a submission: read from its header, and kept as a digest keyed with the owner's secret."""

import json
from collections.abc import Mapping

import anyio.to_thread
from fastapi import Request

from warpdesk_server.app.http import bodies
from warpdesk_server.app.kit import limits
from warpdesk_server.app.kit.errors import Refusal
from warpdesk_server.app.services import Services
from warpdesk_server.kernels.operation import Computation
from warpdesk_server.kernels.problems import InvalidRequest

LONGEST_KEY = 255  # characters

# A body below this size is serialised on the event loop. To serialise takes several times as long as to parse.
_WRITTEN_AT_ONCE = limits.JSON_SMALL // 8


def key_of(request: Request) -> str | None:
    """The Idempotency-Key in the header of a job's submission; None if there is none. Refuses several, and an
    invalid one."""
    values = request.headers.getlist("idempotency-key")
    if not values:
        return None
    if len(values) > 1:
        raise Refusal("invalid-idempotency-key", f"Idempotency-Key is sent {len(values)} times; send it once")
    try:
        key = values[0].encode("latin-1").decode()  # Starlette decodes headers as latin-1
    except UnicodeDecodeError:
        raise Refusal("invalid-idempotency-key", "Idempotency-Key is not UTF-8") from None
    if not 1 <= len(key) <= LONGEST_KEY:
        sentence = f"Idempotency-Key should be 1 to {LONGEST_KEY} characters long, got {len(key)}"
        raise Refusal("invalid-idempotency-key", sentence)
    odd = next((place for place, character in enumerate(key) if not character.isprintable()), None)
    if odd is not None:
        raise Refusal("invalid-idempotency-key", f"Character {odd} of Idempotency-Key cannot be printed")
    return key


async def fingerprint(services: Services, owner: str, request: Request, body: object) -> str:
    """The digest of the body of a job's submission: equal for equal JSON, whatever the order of fields and the
    spaces."""
    if (bodies.declared_length(request) or _WRITTEN_AT_ONCE) < _WRITTEN_AT_ONCE:
        return digest(services, owner, "submission", identity(services.operations, body))
    return await anyio.to_thread.run_sync(
        lambda: digest(services, owner, "submission", identity(services.operations, body))
    )


def digest(services: Services, owner: str, purpose: str, text: str) -> str:
    """A digest of a submission's text, keyed with the owner's secret, so that Redis holds nothing that could be
    guessed."""
    data = f"{purpose}\0{text}".encode()
    return services.store.digest(owner, "uint8", (len(data),), data)


def identity(operations: Mapping[str, Computation], body: object) -> str:
    """The canonical JSON text of a job's submission by which it is known again, whichever name of an input it uses.

    Inputs have their names in records here: a text of an earlier release stays equal to that of the same request. Their
    labels are left out: the same numbers under other names are the same job.
    """
    if not isinstance(body, dict):
        return canonical(body)
    operation, inputs = operations.get(str(body.get("operation"))), body.get("inputs")
    if operation is None or not isinstance(inputs, dict):
        return canonical(body)
    try:
        given = operation.given_names(inputs)
    except InvalidRequest:  # an input is given twice, which is refused later
        return canonical(body)
    return canonical({**body, "inputs": {name: _without_labels(inputs[shown]) for name, shown in given.items()}})


def _without_labels(given: object) -> object:
    return {name: part for name, part in given.items() if name != "labels"} if isinstance(given, dict) else given


def canonical(value: object) -> str:
    """The canonical JSON text of a job's submission: sorted keys, no spaces, so equal values have equal texts."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def reused(job_id: str) -> Refusal:
    sentence = f"The Idempotency-Key was sent before with another body, for {job_id}"
    return Refusal("idempotency-key-reused", sentence, job=job_id)
