"""Amounts are what their text says, to the last place."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warpdesk_server.privacy.amounts import PLACES, Name, NotAnAmount, exactly, read, rounded_up, shown
from warpdesk_server.privacy.chain import canonical

NAMES: tuple[Name, ...] = ("epsilon", "delta", "rho")


@pytest.mark.parametrize(
    ("name", "text", "amount"),
    [
        ("epsilon", "0.1", 10**11),
        ("epsilon", "1", 10**12),
        ("epsilon", "1.000", 10**12),
        ("epsilon", ".5", 5 * 10**11),
        ("epsilon", "1e-12", 1),
        ("epsilon", "+1E+2", 10**14),
        ("epsilon", "9007199254740993", 9007199254740993 * 10**12),  # 2^53 + 1
        ("delta", "1e-24", 1),
        ("delta", "0.000001", 10**18),
        ("rho", "0.000000000000001", 1),
    ],
)
def test_an_amount_is_read_exactly(name: Name, text: str, amount: int) -> None:
    assert exactly(name, text) == amount


@pytest.mark.parametrize(
    ("name", "text"),
    [
        *[("epsilon", text) for text in ("0", "-1", "", "one", "inf", "nan", "0x1", "1/3", "1_0", " 1", "1e", "1e31")],
        ("epsilon", "1e-13"),
        ("epsilon", "0.1000000000001"),
        ("delta", "1e-25"),
        ("rho", "0.0000000000000005"),
    ],
)
def test_what_cannot_be_kept_exactly_is_refused(name: Name, text: str) -> None:
    with pytest.raises(NotAnAmount, match=f"^{name} ") as refused:
        exactly(name, text)
    assert refused.value.name == name


def test_the_sum_is_the_sum() -> None:
    assert 10 * exactly("epsilon", "0.1") == exactly("epsilon", "1")
    assert exactly("epsilon", "0.1") + exactly("epsilon", "0.2") == exactly("epsilon", "0.3")


@given(st.sampled_from(NAMES), st.fractions(min_value=0, max_value=1000))
def test_a_spend_is_rounded_up_by_less_than_one_place(name: Name, value: Fraction) -> None:
    kept = Fraction(rounded_up(name, value), 10 ** PLACES[name])
    assert 0 <= kept - value < Fraction(1, 10 ** PLACES[name])


@given(st.sampled_from(NAMES), st.integers(1, 10**30))
def test_what_is_shown_is_exact_and_read_back(name: Name, amount: int) -> None:
    text = shown({name: amount})[name]
    assert Fraction(text) == Fraction(amount, 10 ** PLACES[name])
    assert "e" not in text.lower()
    assert read(canonical({name: text})) == {name: amount}
    assert shown({name: -amount})[name] == f"-{text}"
    assert exactly(name, text) == amount
