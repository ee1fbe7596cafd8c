"""Routes of privacy budgets: created once, charged by jobs, with a chain of entries that administrators can verify."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated

import anyio.to_thread
from fastapi import APIRouter, Query, Request, Response

from warpdesk import models
from warpdesk.models import Reply
from warpdesk_server.app.access import audit
from warpdesk_server.app.access.audit import Admin, Audited
from warpdesk_server.app.access.auth import Reader
from warpdesk_server.app.access.keys import Key
from warpdesk_server.app.budgets import schemas
from warpdesk_server.app.http import bodies
from warpdesk_server.app.jobs import operations
from warpdesk_server.app.kit import amounts, errors
from warpdesk_server.app.kit.errors import Refusal, refuse_at
from warpdesk_server.app.services import Services, ServicesDep
from warpdesk_server.kernels.spend import Spend
from warpdesk_server.privacy.amounts import Name
from warpdesk_server.privacy.budgets import Budget, NewBudget
from warpdesk_server.privacy.chain import Entry
from warpdesk_server.privacy.charges import Charge, UnknownCharge
from warpdesk_server.privacy.rules import Rules

router = APIRouter(tags=["budgets"], route_class=Audited)

_CALLER = ("unauthorized", "missing-scope", "foreign-host", "ledger-unavailable")
_BODY = ("malformed-json", "duplicate-key", "body-too-large", "unsupported-media-type", "invalid-request")


@router.post(
    "/v1/budgets",
    summary="Create a budget",
    status_code=201,
    response_model=models.Budget,
    responses={
        201: {"headers": {"Location": {"description": "The budget", "schema": {"type": "string"}}}},
        **errors.documented(*_CALLER, *_BODY, "dataset-taken", "audit-unavailable"),
    },
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": {"$ref": "#/components/schemas/NewBudget"}}},
        }
    },
)
async def create_budget(request: Request, caller: Admin, services: ServicesDep) -> Response:
    """What a budget holds is never changed afterwards. A dataset has one open budget at a time, whoever uses it: two
    would add up for those who can charge both."""
    body = await bodies.read_json(
        request,
        services.settings.max_body,
        lambda sent: bodies.fitted(models.NewBudget, amounts.of_body(sent, models.NewBudget.model_json_schema())),
    )
    given = body.model_dump(exclude={"charge_keys", "arrays"})
    made = NewBudget(**given, created_by=caller.id, rules=_rules(body))
    budget = await services.ask_ledger(caller.id, lambda: services.ledger.budgets.open(made))
    audit.about(request, budget.id)
    return _answer(_budget(budget), 201, {"Location": f"/v1/budgets/{budget.id}"})


@router.get(
    "/v1/budgets",
    summary="List the budgets, the first created first",
    response_model=schemas.BudgetPage,
    responses=errors.documented(*_CALLER, "invalid-request", "unknown-budget", "audit-unavailable"),
)
async def list_budgets(
    caller: Admin,
    services: ServicesDep,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    cursor: Annotated[
        str | None, Query(description="From `next` of the page before", pattern=schemas.BUDGET_ID)
    ] = None,
) -> Response:
    found = await services.ask_ledger(caller.id, lambda: services.ledger.budgets.page(limit + 1, cursor))
    more = f"/v1/budgets?limit={limit}&cursor={found[limit - 1].id}" if len(found) > limit else None
    page = schemas.BudgetPage(budgets=[_budget(budget) for budget in found[:limit]], next=more)
    return _answer(page, 200, {"Link": f'<{more}>; rel="next"'} if more else {})


@router.get(
    "/v1/budgets/{budget_id}",
    summary="Get a budget",
    response_model=models.Budget,
    responses=errors.documented(*_CALLER, "unknown-budget"),
)
async def get_budget(budget_id: str, caller: Reader, services: ServicesDep) -> Response:
    """A budget: its total, what was spent and what remains, as exact decimals, and the head of its chain."""
    return _answer(_budget(await services.ask_ledger(caller.id, lambda: services.ledger.budgets.get(budget_id))))


@router.post(
    "/v1/budgets/{budget_id}/close",
    summary="Close a budget",
    response_model=models.Budget,
    responses=errors.documented(*_CALLER, "unknown-budget", "audit-unavailable"),
)
async def close_budget(budget_id: str, caller: Admin, services: ServicesDep) -> Response:
    """From then on nothing is charged to it. What was spent stays on record, and jobs that were charged run."""
    return _answer(
        _budget(await services.ask_ledger(caller.id, lambda: services.ledger.budgets.close(budget_id, caller.id)))
    )


@router.get(
    "/v1/budgets/{budget_id}/rules",
    summary="Get who may charge a budget, and what",
    response_model=schemas.BudgetRules,
    responses=errors.documented(*_CALLER, "unknown-budget", "audit-unavailable"),
)
async def get_budget_rules(budget_id: str, caller: Admin, services: ServicesDep) -> Response:
    found = await services.ask_ledger(caller.id, lambda: services.ledger.budgets.rules(budget_id))
    return Response(found.text, media_type="application/json")


@router.put(
    "/v1/budgets/{budget_id}/rules",
    summary="Replace who may charge a budget, and what",
    response_model=schemas.BudgetRules,
    responses=errors.documented(*_CALLER, *_BODY, "unknown-budget", "budget-closed", "audit-unavailable"),
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": schemas.BudgetRules.model_json_schema()}},
        }
    },
)
async def change_budget_rules(budget_id: str, request: Request, caller: Admin, services: ServicesDep) -> Response:
    """Both lists are replaced. It is an entry of the budget's chain; what was charged before stays."""
    body = await bodies.read_json(
        request, services.settings.max_body, lambda sent: bodies.fitted(schemas.BudgetRules, bodies.parse(sent))
    )
    await services.ask_ledger(
        caller.id, lambda: services.ledger.budgets.change_rules(budget_id, _rules(body), caller.id)
    )
    return Response(body.model_dump_json(), media_type="application/json")


@router.post(
    "/v1/budgets/{budget_id}/quote",
    summary="Ask what a job would cost, and how accurate it would be",
    response_model=schemas.Quote,
    responses=errors.documented(
        *_CALLER, *_BODY, "unknown-budget", "unknown-operation", "not-accountable", "charge-forbidden"
    ),
)
async def quote_job(budget_id: str, request: Request, caller: Reader, services: ServicesDep) -> Response:
    """Send the job as it would be submitted: whether the budget holds it, and what would remain. Charges nothing."""

    def checked(sent: bytes) -> tuple[Spend, list[str]]:
        submission = operations.submission(operations.parsed(services, sent))
        found = services.operations.get(submission.operation)
        if found is not None and found.spend is None:  # before it is checked, which may take long
            raise refuse_at("not-accountable", "/operation", f"{found.name} charges no budget")
        job = operations.check(services, submission, operations.Sources(services, caller.id))
        if job.spend is None:
            sentence = f"{job.operation.name} charges no budget with these params"
            raise refuse_at("not-accountable", "/params", sentence)
        return job.spend, list(job.stored.values())

    spend, stored = await bodies.read_json(request, services.settings.max_body, checked, small=0)  # it reads files
    offer = await services.ask_ledger(
        caller.id, lambda: services.ledger.budgets.quote(budget_id, spend, caller.id, stored)
    )
    return _answer(
        schemas.Quote(
            fits=offer.fits,
            cost=_amounts(offer.cost),
            remaining=_amounts(offer.remaining),
            accuracy_95=await anyio.to_thread.run_sync(spend.accuracy_95),  # exact arithmetic of milliseconds
        )
    )


@router.get(
    "/v1/budgets/{budget_id}/history",
    summary="Read a budget's chain",
    response_model=schemas.BudgetHistory,
    responses=errors.documented(*_CALLER, "unknown-budget", "invalid-request"),
)
async def get_budget_history(
    budget_id: str,
    caller: Reader,
    services: ServicesDep,
    after: Annotated[int, Query(ge=0, description="Number of the last entry that is known")] = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> Response:
    """Every charge, refund and change in order; each holds the hash of the one before. Whose a charge is and what for,
    its owner and administrators see alone."""
    found = await services.ask_ledger(caller.id, lambda: services.ledger.budgets.history(budget_id, after, limit + 1))
    more = f"/v1/budgets/{budget_id}/history?after={found[limit - 1].seq}&limit={limit}" if len(found) > limit else None
    return _answer(schemas.BudgetHistory(entries=[_entry(entry, caller) for entry in found[:limit]], next=more))


@router.get(
    "/v1/budgets/{budget_id}/verify",
    summary="Check a budget's chain",
    response_model=schemas.Verified,
    responses=errors.documented(*_CALLER, "unknown-budget"),
)
async def verify_budget(budget_id: str, caller: Reader, services: ServicesDep) -> Response:
    """Verify a budget's whole chain: every hash, and whether what was spent is the sum of its entries.

    A head that was noted before, from any answer, proves that nothing before it was changed since.
    """
    verdict = await services.ask_ledger(caller.id, lambda: services.ledger.budgets.verify(budget_id))
    return _answer(
        schemas.Verified(
            valid=verdict.ok,
            entries=verdict.entries,
            head=verdict.head,
            first_bad=verdict.first_bad,
            reason=verdict.reason,
        )
    )


@router.get(
    "/v1/charges/{charge_id}",
    summary="Get a charge",
    response_model=schemas.Charge,
    responses=errors.documented(*_CALLER, "unknown-charge"),
)
async def get_charge(charge_id: str, caller: Reader, services: ServicesDep) -> Response:
    """What became of it: `charged`, `claimed` by a worker, `released`, `failed` (spent all the same) or `void`."""
    found = await services.ask_ledger(caller.id, lambda: _own(services, caller, charge_id))
    return _answer(_charge(found))


def _own(services: Services, caller: Key, charge_id: str) -> Charge:
    try:
        found = services.ledger.charges.get(charge_id)
    except UnknownCharge:
        found = None
    if found is None or (found.owner != caller.id and not caller.allows("admin")):
        raise Refusal("unknown-charge", f"There is no charge {charge_id[:80]!r}")
    return found


def _budget(found: Budget) -> models.Budget:
    return models.Budget(
        id=found.id,
        name=found.name,
        dataset=found.dataset,
        accountant=found.accountant,
        neighbouring=found.neighbouring,
        state=found.state,
        total=_amounts(found.total),
        spent=_amounts(found.spent),
        remaining=_amounts(found.remaining),
        entries=found.seq,
        head=found.head,
        created_by=found.created_by,
        created_at=_moment(found.created_at),
    )


def _rules(body: models.NewBudget | schemas.BudgetRules) -> Rules:
    lists = (body.charge_keys, body.arrays)
    return Rules(*(None if given is None else tuple(dict.fromkeys(given)) for given in lists))


def _entry(found: Entry, reader: Key) -> schemas.BudgetEntry:
    whole = reader.allows("admin") or found.owner == reader.id
    of_charge = whole and found.kind in ("charge", "refund")
    return schemas.BudgetEntry(
        number=found.seq,
        kind=found.kind,
        charge=found.charge_id if of_charge else None,
        owner=found.owner if whole else None,
        operation=found.operation if of_charge else None,
        job=found.job_id if of_charge else None,
        amounts=_amounts(found.amounts),
        relation=found.relation,
        reason=(found.reason or None) if whole else None,
        at=_moment(found.at),
        previous=found.prev,
        hash=found.hash,
        text=found.text if whole else None,
    )


def _charge(found: Charge) -> schemas.Charge:
    return schemas.Charge(
        id=found.id,
        budget=found.budget_id,
        job=found.job_id,
        operation=found.operation,
        amounts=_amounts(found.amounts),
        state=found.state,
        reason=found.reason,
        number=found.seq,
        head=found.hash,
        at=_moment(found.at),
    )


def _amounts(exact: Mapping[Name, str]) -> models.Amounts:
    return models.Amounts(**{str(name): value for name, value in exact.items()})


def _moment(microseconds: int) -> datetime:
    return datetime.fromtimestamp(microseconds / 1e6, UTC)


def _answer(model: Reply, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(model.model_dump_json(), status, headers, "application/json")
