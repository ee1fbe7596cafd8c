"""The answers of operations are those of earlier releases, byte for byte."""

import json

import pytest

from tests.kernels.digests import RECORDED, digests
from tests.kernels.families import families


@pytest.mark.parametrize("family", families())
def test_answers_have_the_bytes_that_were_recorded(family: str) -> None:
    recorded = json.loads(RECORDED.read_text()).get(family, {})
    assert digests(family) == recorded, "if that is meant, `python -m tests.kernels.digests` records them anew"
