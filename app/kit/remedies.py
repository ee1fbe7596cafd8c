"""What each error code means at more length than its title, and what helps. `GET /problems/{code}` answers with it."""

# code: (what happened, what helps)
REMEDIES: dict[str, tuple[str, str]] = {
    "malformed-json": (
        "The body is not JSON as RFC 8259 has it. NaN and Infinity are not JSON.",
        "Send valid JSON, with null for a gap. `detail` says where reading ended.",
    ),
    "duplicate-key": (
        "An object of the body has one field twice. Parsers differ in which of the two they take.",
        "Send each field once.",
    ),
    "bad-request": (
        "A part of the request outside its body, such as a header or a query parameter, cannot be read.",
        "Correct what `detail` names.",
    ),
    "idempotency-key-required": (
        "A release that charges a budget is made once, also if its request is sent twice. Only a key can tell that.",
        "Send the header `Idempotency-Key` with a text of your own, and the same one when you send it again.",
    ),
    "invalid-idempotency-key": (
        "The header holds no text, too much of it, or characters that are not printable.",
        "Send printable text of the length that `detail` allows.",
    ),
    "disconnected": (
        "The connection closed before the whole body had come. Nothing was done.",
        "Send the request again. If it recurs, look at the network and at proxies between.",
    ),
    "unauthorized": (
        "The request has no API key, or one that was revoked, has expired, or never existed.",
        "Send `Authorization: Bearer <key>`. The command line and the Python client read WARPDESK_API_KEY. "
        "`warpdesk keys create NAME` makes a key on the service's machine.",
    ),
    "unknown-member": (
        "The join token is not one of this round's.",
        "Use the token that the round gave this member.",
    ),
    "missing-scope": (
        "The key is valid, and may not do this.",
        "Use a key with the scope that `detail` names, or have one made: `warpdesk keys create NAME --scopes ...`.",
    ),
    "foreign-host": (
        "The service has no API keys yet. So it serves only processes of its own user on its own machine.",
        "Create a key on its machine: `warpdesk keys create NAME`. Then send it from anywhere.",
    ),
    "not-found": ("No route has this path.", "Compare it with `/docs` or docs/reference/http.md."),
    "unknown-job": (
        "There is no such job, or another key owns it. A record is kept a day longer than its result.",
        "Look at the id, and send the key that submitted it. `GET /v1/jobs` lists a key's jobs.",
    ),
    "unknown-round": ("There is no such round, or it is forgotten.", "Look at the id that creating it answered."),
    "unknown-array": (
        "The key has no such array. It may have been deleted, or its time was over.",
        "Upload it again: the same numbers have the same id. `GET /v1/arrays` lists a key's arrays.",
    ),
    "unknown-dataset": (
        "The key has no dataset of that name.",
        "`GET /v1/datasets` lists a key's datasets; `PUT /v1/datasets/{name}` makes one.",
    ),
    "dataset-exists": (
        "There is a dataset of that name with other columns. Columns are fixed when a dataset is made.",
        "Take another name, or delete the dataset that is there.",
    ),
    "rows-differ": (
        "At one of these times the dataset has other numbers, or later rows. Nothing was appended.",
        "Compare what `detail` names. If the new numbers are right, send the rows again with `correct`.",
    ),
    "too-many-datasets": (
        "The key has as many datasets as it may.",
        "Delete one: `GET /v1/datasets` lists them. Assets and columns can share a dataset.",
    ),
    "unknown-output": (
        "The operation has no output of that name.",
        "`GET /v1/operations/{name}` lists the outputs.",
    ),
    "method-not-allowed": ("The path exists, and takes other methods.", "Use one that the header `Allow` names."),
    "not-acceptable": (
        "`Accept` names no media type that this answer can have.",
        "Ask for one that `detail` names.",
    ),
    "unknown-budget": ("There is no such budget.", "Ask an administrator for the id: `GET /v1/budgets` lists them."),
    "unknown-charge": ("There is no such charge, or another key made it.", "Look at the id in the job's provenance."),
    "too-slow": (
        "The body came more slowly than the service waits for.",
        "Send it again over a faster connection, or less at a time. Upload large arrays as `.npy`.",
    ),
    "budget-exceeded": (
        "The release would spend more than remains of the budget. Nothing was released or charged.",
        "Ask for less: more noise, or fewer releases. `POST /v1/budgets/{id}/quote` tells the cost beforehand.",
    ),
    "charge-forbidden": (
        "The budget's rules list the keys and arrays that may be charged, and this is none of them.",
        "Have an administrator change them: `PUT /v1/budgets/{id}/rules`.",
    ),
    "budget-closed": (
        "An administrator closed the budget. Nothing more is charged to it.",
        "Use another budget, or have one opened for the dataset.",
    ),
    "dataset-taken": (
        "A dataset has one open budget, since two would add up.",
        "Use the budget that is there, or close it first.",
    ),
    "array-in-use": (
        "A job that is not done, or was given up, reads the array.",
        "Wait for the job, cancel it, or erase it.",
    ),
    "not-a-dead-letter": ("Only jobs that were given up can be rerun.", "Submit the job anew."),
    "not-a-task": (
        "Only tasks have steps, and can be paused and resumed.",
        "Cancel the job instead. `task` in `GET /v1/operations` says which operations are tasks.",
    ),
    "inputs-gone": (
        "The job cannot run again: its inputs were deleted, or were secret and so not kept.",
        "Upload the inputs and submit the job anew.",
    ),
    "stale-attempt": (
        "Between workers: another attempt at the job has begun, so this one no longer counts.",
        "Nothing: the worker drops what it had. If it recurs, see the runbook on leases and clocks.",
    ),
    "result-committed": (
        "Between workers: the job has its answer already, and it is never replaced.",
        "Nothing: the worker drops what it had.",
    ),
    "job-failed": (
        "The job failed, and has no result.",
        "`error` of the job says why. If it is retryable, submit the job again.",
    ),
    "job-canceled": ("The job was canceled before it was done.", "Submit it again."),
    "job-expired": (
        "The job's deadline passed before it was done.",
        "Submit it with a longer `deadline_s`, a higher `priority`, or when less waits.",
    ),
    "not-yet": (
        "The round waits for members in an earlier phase.",
        "Try again after `Retry-After`, or follow the round's state.",
    ),
    "phase-over": (
        "The round went on without this member, whose message came too late.",
        "Join the next round. Longer deadlines help members on slow networks.",
    ),
    "already-sent": ("The member has sent another message in this phase, which counts.", "Go on with the next phase."),
    "round-aborted": (
        "Too few members were left, or the round was canceled. No sum was made.",
        "Begin a new round. `detail` says why this one ended.",
    ),
    "result-gone": (
        "The result was erased, or its time was over.",
        "Submit the job again. `result_ttl_s` keeps a result for up to a week.",
    ),
    "body-too-large": (
        "The body has more bytes than the route takes.",
        "Upload the numbers with `PUT /v1/arrays`, as `.npy`, and name their id.",
    ),
    "array-too-large": ("The array has more bytes than one array may.", "Split it, or use float32."),
    "unsupported-media-type": (
        "The route does not read this `Content-Type`.",
        "Send one that `detail` names.",
    ),
    "range-not-satisfiable": ("The range begins behind the last byte.", "`Content-Range` tells the size."),
    "invalid-request": (
        "Parameters, inputs or other fields do not fit. Nothing was queued or charged.",
        "`errors` has a JSON pointer and a sentence for each mistake. `GET /v1/operations/{name}` has the schema.",
    ),
    "unknown-operation": ("There is no operation of that name.", "`GET /v1/operations` lists them."),
    "idempotency-key-reused": (
        "The key was sent before with another body. It belongs to the job that made.",
        "Use a new key for a new request.",
    ),
    "not-accountable": (
        "The budget adds up releases in a way that this noise does not fit, or the job releases nothing.",
        "`detail` says which noise the budget's accountant takes.",
    ),
    "job-too-large": (
        "The job would need more memory, or more work, than one job may.",
        "Split it: fewer assets, paths or rows at a time. `limits` in `GET /v1/operations` has the numbers.",
    ),
    "malformed-array": (
        "The body is not the file that its media type and headers declare.",
        "Write it with `numpy.save`, C-ordered and little-endian.",
    ),
    "malformed-result": (
        "Between workers: the result is not whole, or not what the operation gives.",
        "Update the worker: it may be of another release.",
    ),
    "malformed-csv": (
        "A cell is no number, or rows have different lengths.",
        "`detail` names line and column. Choose columns with `?columns=`.",
    ),
    "wrong-length": ("The content has fewer or more bytes than required.", "Send as many as `detail` says."),
    "double-reveal": (
        "Of one client either the key or the mask of its own may be revealed: both would show its vector.",
        "Send the shares of the clients that the route `survivors` names, each of the kind that it asks for.",
    ),
    "forged-share": ("A share does not match what its member committed to.", "Send the share that was received."),
    "not-a-neighbour": ("The round gave this member no part with the one that it names.", "Follow the round's roster."),
    "missing-share": (
        "A share for a member of the roster is missing.",
        "Send one for each that `detail` names.",
    ),
    "rate-limited": (
        "The key, or the address, sends more requests a second than it may.",
        "Wait for `Retry-After`. Wait with `Prefer: wait` instead of asking often.",
    ),
    "share-used-up": (
        "The key has as much under way at once as one may have: requests, waits, streams or bytes.",
        "Wait for `Retry-After`, or for requests of your own to end.",
    ),
    "quota-reached": (
        "The key has as many jobs that are not done as it may.",
        "Wait for `Retry-After`, or cancel some: `GET /v1/jobs?status=queued`.",
    ),
    "too-many-rounds": ("The key has as many live rounds as it may.", "End one, or wait for it."),
    "storage-quota": (
        "What the key stores has reached its quota.",
        "Delete arrays and erase jobs: `GET /v1/arrays` tells the bytes. Or keep results for less long.",
    ),
    "head-too-large": ("The request line and headers are too long.", "Send fewer or shorter headers."),
    "internal-error": (
        "A fault of the service. Its log has the reason, under the request's `X-Request-ID`.",
        "Send the request again, with the same Idempotency-Key. Tell the operator the `X-Request-ID`.",
    ),
    "storage-full": (
        "The disk that holds arrays and results is full up to its reserve.",
        "Try again later, or with less. The operator frees space: see the runbook.",
    ),
    "no-gpu-worker": (
        "The job insists on a GPU, and no worker with one is alive.",
        "Send `backend: auto` to have it computed on a CPU, or try again later. `/gpu-health` says why.",
    ),
    "busy": (
        "The service has as much in hand as it can carry.",
        "Wait for `Retry-After` and send it again, with the same Idempotency-Key.",
    ),
    "queue-full": (
        "As many jobs wait as the queue may hold.",
        "Wait for `Retry-After`. More workers shorten the wait.",
    ),
    "queue-memory": (
        "Redis is nearly out of memory, so that no job is taken which it could not keep.",
        "Wait for `Retry-After`. The operator gives Redis more: see the runbook.",
    ),
    "deadline-unreachable": (
        "By what waits now the job would not be done before its deadline.",
        "Send a later deadline or a higher priority, or try again after `Retry-After`.",
    ),
    "audit-unavailable": (
        "An administrator's act is written to the audit log first, which failed. Nothing was done.",
        "The operator looks at the disk and at the rights of the file.",
    ),
    "ledger-unavailable": (
        "The database of budgets and rounds does not answer. Nothing was charged or released.",
        "Wait for `Retry-After`. The operator finds the reason in the log and in the runbook.",
    ),
    "queue-unavailable": (
        "Redis does not answer. Whether the request took effect is not known.",
        "Send it again after `Retry-After`, with the same Idempotency-Key.",
    ),
    "not-replicated": (
        "With durability `replicated` an answer waits for replicas of Redis, and none confirmed it in time.",
        "Send it again after `Retry-After`, with the same Idempotency-Key. The operator looks at the replicas.",
    ),
}
