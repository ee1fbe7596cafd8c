"""Routes of secure-aggregation rounds: clients have their vectors summed by a server that reads none of them."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Annotated, Any, TypeVar

import pydantic_core
from fastapi import APIRouter, Query, Request, Response

from warpdesk.models import Body
from warpdesk_server.app.access import audit, auth
from warpdesk_server.app.access.audit import Audited
from warpdesk_server.app.access.auth import Reader, Submitter
from warpdesk_server.app.access.keys import Key
from warpdesk_server.app.http import bodies
from warpdesk_server.app.jobs import results
from warpdesk_server.app.jobs.records import own_job
from warpdesk_server.app.kit import amounts, errors, limits
from warpdesk_server.app.kit.errors import Refusal
from warpdesk_server.app.kit.schemas import moment
from warpdesk_server.app.rounds import masked, schemas
from warpdesk_server.app.services import Services, ServicesDep
from warpdesk_server.kernels.problems import Problem
from warpdesk_server.privacy.rounds.records import Member, Status
from warpdesk_server.privacy.rounds.terms import Bounds, NewRound, overflow_proof, problems

router = APIRouter(prefix="/v1/secagg/rounds", tags=["rounds"], route_class=Audited)

BINARY = "application/octet-stream"

_CREATOR = ("unauthorized", "missing-scope", "foreign-host", "ledger-unavailable")
_ANYONE = (*_CREATOR, "unknown-member", "unknown-round")
_MEMBER = ("unknown-member", "unknown-round", "not-yet", "phase-over", "round-aborted", "ledger-unavailable")
_BODY = (
    "malformed-json", "duplicate-key", "disconnected", "body-too-large", "unsupported-media-type", "invalid-request",
    "already-sent", "wrong-length",
)  # fmt: skip
_JOINED: dict[str, Any] = {"security": [{"join_token": []}]}
_EITHER: dict[str, Any] = {"security": [{"bearer": []}, {"api_key": []}, {"join_token": []}]}

B = TypeVar("B", bound=Body)


@router.post(
    "",
    summary="Make a round",
    status_code=201,
    response_model=schemas.CreatedRound,
    responses=errors.documented(
        *_CREATOR, *_BODY[:6], "job-too-large", "rate-limited", "too-many-rounds", "storage-quota", "storage-full"
    ),
    openapi_extra={"requestBody": errors.body(schemas.RoundRequest)},
)
async def create_round(request: Request, caller: Submitter, services: ServicesDep) -> Response:
    """The clients' join tokens are in the answer and nowhere else. Refused where the sum could overflow."""
    services.submission_rate.take(caller.id)
    body = await _body(request, services, schemas.RoundRequest)
    new = NewRound(
        owner=caller.id,
        clients=body.clients,
        min_clients=body.min_clients,
        threshold=body.threshold,
        dimension=body.dimension,
        modulus_bits=body.modulus_bits,
        quantisation=body.quantisation,
        output=body.output,
        backend=body.backend,
        deadlines=(
            body.deadlines.keys_s, body.deadlines.shares_s, body.deadlines.masked_s, body.deadlines.unmask_s,
        ),
    )  # fmt: skip
    if found := [Problem(f"/{field}", sentence) for field, sentence in problems(new)]:
        raise Refusal("invalid-request", errors.sentence_of(tuple(found)), *found)
    settings = services.settings
    if new.bytes + 24 * new.dimension > settings.max_job_bytes:
        sentence = (
            f"{new.clients} vectors of {new.dimension} words and their sum are {new.bytes + 24 * new.dimension} bytes; "
            f"a job may have {settings.max_job_bytes}"
        )
        raise errors.refuse_at("job-too-large", "/dimension", sentence)
    round_id, tokens = await services.ask_ledger(
        caller.id,
        lambda: services.rounds.create(
            new, Bounds(settings.max_live_rounds, settings.round_bytes_per_key, settings.max_round_bytes)
        ),
    )
    created = schemas.CreatedRound(id=round_id, join_tokens=tokens, overflow_proof=_proof(new))
    return Response(created.model_dump_json(), 201, {"Location": f"{router.prefix}/{round_id}"}, "application/json")


@router.get(
    "",
    summary="List your rounds, newest first",
    response_model=schemas.RoundPage,
    responses=errors.documented(*_CREATOR, "unknown-round", "invalid-request"),
)
async def list_rounds(
    caller: Reader,
    services: ServicesDep,
    limit: Annotated[int, Query(ge=1, le=100)] = 50,
    cursor: Annotated[str | None, Query(description="From `next` of the page before", pattern=schemas.ROUND_ID)] = None,
) -> Response:
    """Those that the key made, also when they have ended. Join tokens are told once, to whoever makes a round."""
    found = await services.ask_ledger(caller.id, lambda: services.rounds.page(caller.id, limit + 1, cursor))
    more = f"{router.prefix}?limit={limit}&cursor={found[limit - 1].id}" if len(found) > limit else None
    page = schemas.RoundPage(rounds=[_view(status) for status in found[:limit]], next=more)
    headers = {"Link": f'<{more}>; rel="next"'} if more else {}
    return Response(page.model_dump_json(), 200, headers, "application/json")


@router.get(
    "/{round_id}",
    summary="See how far a round is",
    response_model=schemas.Round,
    responses=errors.documented(*_ANYONE),
    openapi_extra=_EITHER,
)
async def get_round(round_id: str, request: Request, services: ServicesDep) -> schemas.Round:
    """For the key that made the round, and for its clients."""
    return _view(await _status(request, services, round_id))


def _view(status: Status) -> schemas.Round:
    created_at = moment(status.created_at)
    assert created_at is not None  # noqa: S101
    return schemas.Round(
        id=status.id,
        phase=status.phase,
        why=status.why,
        counts=schemas.RoundCounts(**status.counts),
        clients=status.clients,
        min_clients=status.min_clients,
        roster=status.roster,
        degree=status.degree,
        threshold=status.threshold,
        dimension=status.dimension,
        modulus_bits=status.modulus_bits,
        created_at=created_at,
        deadline_at=moment(status.deadline),
        ended_at=moment(status.ended_at),
        job=status.job_id,
    )


@router.delete(
    "/{round_id}",
    summary="Cancel a round",
    status_code=204,
    response_class=Response,
    responses={
        204: {"description": "Aborted, or ended before"},
        **errors.documented(*_CREATOR, "unknown-round", "audit-unavailable"),
    },
)
async def cancel_round(round_id: str, request: Request, caller: Submitter, services: ServicesDep) -> Response:
    """Abort a round: it will have no sum, its clients learn that, and what they sent is erased. A round
    whose job is queued already is canceled with the job. An admin may end any round."""
    status = await services.ask_ledger(caller.id, lambda: services.rounds.status(round_id))
    if status.owner != caller.id and not caller.allows("admin"):
        raise Refusal("unknown-round", f"There is no round {round_id[:80]!r}")
    if status.owner != caller.id:
        await audit.begin(request, caller)
    await services.ask_ledger(caller.id, lambda: services.rounds.cancel(round_id))
    if status.job_id is not None:
        job_id = status.job_id
        with suppress(KeyError):  # Redis has forgotten it
            await services.queue(lambda jobs: jobs.cancel(job_id))
    return Response(status_code=204)


@router.post(
    "/{round_id}/keys",
    summary="Take part in a round",
    status_code=204,
    response_class=Response,
    responses=errors.documented(*_MEMBER, *_BODY),
    openapi_extra={**_JOINED, "requestBody": errors.body(schemas.Keys)},
)
async def send_keys(round_id: str, request: Request, services: ServicesDep) -> Response:
    member = await _member(request, services, round_id)
    keys = await _body(request, services, schemas.Keys)
    mask_public, share_public = bytes.fromhex(keys.mask_public), bytes.fromhex(keys.share_public)
    await services.ask_ledger(member.owner, lambda: services.rounds.send_keys(member, mask_public, share_public))
    return Response(status_code=204)


@router.get(
    "/{round_id}/roster",
    summary="See who takes part",
    response_model=schemas.Roster,
    responses=errors.documented(*_ANYONE, "not-yet", "round-aborted"),
    openapi_extra=_EITHER,
)
async def get_roster(round_id: str, request: Request, services: ServicesDep) -> schemas.Roster:
    """The roster of a round: the public keys of its clients, known once all have sent them or their time is over."""
    status = await _status(request, services, round_id)
    found = await services.ask_ledger(status.owner, lambda: services.rounds.roster(round_id))
    return schemas.Roster(
        round=round_id,
        clients={
            str(client): schemas.Keys(mask_public=mask.hex(), share_public=share.hex())
            for client, (mask, share) in found.clients.items()
        },
        ring=list(found.ring),
        degree=found.degree,
        threshold=found.threshold,
        dimension=found.dimension,
        modulus_bits=found.modulus_bits,
        quantisation=found.quantisation,
    )


@router.post(
    "/{round_id}/shares",
    summary="Share one's secrets",
    status_code=204,
    response_class=Response,
    responses=errors.documented(*_MEMBER, *_BODY, "not-a-neighbour", "missing-share"),
    openapi_extra={**_JOINED, "requestBody": errors.body(schemas.SentShares)},
)
async def send_shares(round_id: str, request: Request, services: ServicesDep) -> Response:
    """Send a client's encrypted shares: ciphertexts of 96 bytes for exactly its neighbours in the round."""
    member = await _member(request, services, round_id)
    sent = await _body(request, services, schemas.SentShares, keys=limits.JSON_KEYS_OF_MEMBERS)
    commitments = {
        int(client): (bytes.fromhex(both.self_seed), bytes.fromhex(both.mask_key))
        for client, both in sent.commitments.items()
    }
    await services.ask_ledger(
        member.owner, lambda: services.rounds.send_shares(member, _by_client(sent.ciphertexts), commitments)
    )
    return Response(status_code=204)


@router.get(
    "/{round_id}/shares",
    summary="Get the shares of others' secrets",
    response_model=schemas.ReceivedShares,
    responses=errors.documented(*_MEMBER),
    openapi_extra=_JOINED,
)
async def get_shares(round_id: str, request: Request, services: ServicesDep) -> schemas.ReceivedShares:
    """Known once the shares are in, or their time is over. Who has sent none is out of the round."""
    member = await _member(request, services, round_id)
    sharers, received = await services.ask_ledger(member.owner, lambda: services.rounds.shares_for(member))
    return schemas.ReceivedShares(
        sharers=sharers,
        shares={
            str(client): schemas.ReceivedShare(
                ciphertext=share.ciphertext.hex(),
                commitments=schemas.Commitments(self_seed=share.self_seed.hex(), mask_key=share.mask_key.hex()),
            )
            for client, share in received.items()
        },
    )


@router.put(
    "/{round_id}/masked",
    summary="Send one's masked vector",
    status_code=204,
    response_class=Response,
    responses=errors.documented(
        *_MEMBER,
        "disconnected",
        "unsupported-media-type",
        "invalid-request",
        "already-sent",
        "wrong-length",
        "storage-full",
    ),
    openapi_extra={
        **_JOINED,
        "requestBody": {"required": True, "content": {BINARY: {"schema": {"type": "string", "format": "binary"}}}},
    },
)
async def send_masked(round_id: str, request: Request, services: ServicesDep) -> Response:
    """Little-endian words of `modulus_bits` bits, as many as the round's dimension. A vector that is too long, too
    short or too late is erased, and its client may send it again while the phase lasts."""
    bodies.require_media_type(request, BINARY)
    member = await _member(request, services, round_id)
    await masked.receive(request, services, member)
    return Response(status_code=204)


@router.get(
    "/{round_id}/survivors",
    summary="See whose vectors are summed",
    response_model=schemas.Survivors,
    responses=errors.documented(*_ANYONE, "not-yet", "round-aborted"),
    openapi_extra=_EITHER,
)
async def get_survivors(round_id: str, request: Request, services: ServicesDep) -> schemas.Survivors:
    """Known once the masked vectors are in, or their time is over. Who dropped out has dropped out for good."""
    status = await _status(request, services, round_id)
    stayed, gone = await services.ask_ledger(status.owner, lambda: services.rounds.survivors(round_id))
    return schemas.Survivors(survivors=stayed, dropped=gone)


@router.post(
    "/{round_id}/unmask",
    summary="Give shares of others' secrets",
    status_code=204,
    response_class=Response,
    responses=errors.documented(*_MEMBER, *_BODY, "double-reveal", "forged-share", "not-a-neighbour", "missing-share"),
    openapi_extra={**_JOINED, "requestBody": errors.body(schemas.Unmasking)},
)
async def send_unmask(round_id: str, request: Request, services: ServicesDep) -> Response:
    """For each of the sender's neighbours and itself one share: of the self seed of who survived, of the mask key of
    who dropped out. Never both: together they open a vector."""
    member = await _member(request, services, round_id)
    sent = await _body(request, services, schemas.Unmasking, keys=limits.JSON_KEYS_OF_MEMBERS)
    await services.ask_ledger(
        member.owner,
        lambda: services.rounds.send_unmask(member, _by_client(sent.self_seed), _by_client(sent.mask_key)),
    )
    services.rounds_moved.set()
    return Response(status_code=204)


@router.get(
    "/{round_id}/result",
    summary="Get the sum",
    response_model=schemas.RoundResult,
    responses=errors.documented(
        *_CREATOR, "unknown-round", "unknown-job", "not-yet", "round-aborted", "result-gone", "queue-unavailable"
    ),
)
async def get_round_result(round_id: str, caller: Reader, services: ServicesDep) -> Response:
    """For the key that made the round alone."""
    status = await _own(services, caller, round_id)
    if status.phase == "aborted":
        raise Refusal("round-aborted", f"The round was aborted: {status.why}")
    if status.phase != "done" or status.job_id is None:
        raise Refusal("not-yet", f"The round is in the phase {status.phase}, and has no sum yet")
    stayed, gone = await services.ask_ledger(caller.id, lambda: services.rounds.survivors(round_id))
    record = await own_job(services, caller, status.job_id)

    def statement_of(whole: dict[str, Any]) -> bytes:
        outputs = whole["outputs"]
        return pydantic_core.to_json(
            {
                "round": round_id,
                "job": whole["job"],
                "sum": outputs["sum"],
                "survivors": stayed,
                "dropped": gone,
                "overflow_proof": outputs["overflow_proof"],
                "statement": _statement(status, len(stayed), len(gone)),
                "provenance": whole["provenance"],
            }
        )

    return Response(await results.written(services, record, statement_of), media_type="application/json")


def _statement(status: Status, stayed: int, gone: int) -> str:
    return (
        f"The server learned which {stayed + gone} clients took part, when each of them sent what, which {stayed} of "
        "them survived, and the exact sum of those survivors' vectors; and of each client one of its two secrets. It "
        f"could read no single vector unless {status.threshold} clients of one sharing set, or all of its neighbours "
        "that are left, told it what they know, or it departed from the protocol. The sum is exact and carries no "
        "noise: secure aggregation is not differential privacy, and whoever knows the vectors of all other survivors "
        "knows the last one."
    )


def _proof(new: NewRound) -> schemas.OverflowProof:
    largest, limit = overflow_proof(new)
    return schemas.OverflowProof(max_abs_sum=largest, limit=limit)


async def _member(request: Request, services: Services, round_id: str) -> Member:
    token, gate = auth.token_of(request), request.app.state.gate
    try:  # a member is let in however many others are refused from the same address
        member = await services.ask_ledger(bodies.sender(request), lambda: services.rounds.member(round_id, token))
    except Refusal as refusal:
        if refusal.code in ("unknown-member", "unknown-round"):
            gate.count_failure(request)
        raise
    services.request_rate.take(f"{round_id} {member.client}")
    return member


async def _own(services: Services, caller: Key, round_id: str) -> Status:
    """The status of one of the caller's rounds, for a route; another key's round is answered as unknown."""
    status = await services.ask_ledger(caller.id, lambda: services.rounds.status(round_id))
    if status.owner != caller.id:
        raise Refusal("unknown-round", f"There is no round {round_id[:80]!r}")
    return status


async def _status(request: Request, services: Services, round_id: str) -> Status:
    """The status of a round that the API shows the key that created it and its clients."""
    if auth.token_of(request).startswith("wdj_"):
        member = await _member(request, services, round_id)
        return await services.ask_ledger(member.owner, lambda: services.rounds.status(round_id))
    return await _own(services, await auth.reader(request), round_id)


async def _body(request: Request, services: Services, model: type[B], keys: int = limits.JSON_KEYS) -> B:
    return await bodies.read_json(
        request,
        services.settings.max_body,
        lambda sent: bodies.fitted(model, amounts.of_body(sent, model.model_json_schema())),
        keys=keys,
    )


def _by_client(given: Mapping[str, str]) -> dict[int, bytes]:
    return {int(client): bytes.fromhex(text) for client, text in given.items()}
