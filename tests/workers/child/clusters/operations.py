"""The catalogues of these tests: of nodes, all operations and moving means that misbehave; and of a worker."""

from dataclasses import replace

from warpdesk_server.kernels.catalogue import OPERATIONS as CATALOGUE

OPERATIONS = {
    **CATALOGUE,
    **{
        name: replace(CATALOGUE["sma"], name=name, package=f"{__package__}.misbehaving")
        for name in ("gated", "failing", "refusing", "dying")
    },
}

OF_WORKER = {name: OPERATIONS[name] for name in ("sma", "gated")}
