"""The example's ten processes: two are killed, and the sum is that of the nine vectors that were sent."""

import numpy as np
import pytest

from examples import secure_sum
from examples.demo import position
from examples.prices import stocks


@pytest.mark.timeout(300)
def test_the_sum_of_ten_desks_survives_two_that_are_killed(service, client, capsys):
    result = secure_sum.main(["--url", service.url, "--patience", "8"])

    stayed = [desk for desk in range(10) if desk != secure_sum.DIES_BEFORE]
    assert (result.survivors, result.dropped) == (stayed, [secure_sum.DIES_BEFORE])
    _, symbols, closes = stocks()
    plain = sum(np.rint(position(closes, months=desk + 1)).astype(np.int64) for desk in stayed)
    assert result.sum.tolist() == plain.tolist()
    printed = capsys.readouterr().out
    assert "killed: desks [3, 7]" in printed
    assert "\nequal. The server learned" in printed
    rows = [line.split() for line in printed.splitlines() if line.split()[:1] and line.split()[0] in symbols]
    assert [row[0] for row in rows] == list(symbols)
    assert all(secure == other for _, secure, other in rows)
