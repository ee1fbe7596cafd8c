"""Amounts are plain positive decimals; whatever could be read two ways is refused."""

import pytest
from pydantic import TypeAdapter, ValidationError

from warpdesk.amount import Amount

_AMOUNT: TypeAdapter[str] = TypeAdapter(Amount)


@pytest.mark.parametrize(
    "text", ["1", "+1", "0.5", ".5", "5.", "1e-3", "12E+2", "1e30", "1e-30", "0." + "0" * 29 + "1"]
)
def test_a_decimal_is_kept_as_it_is_written(text: str) -> None:
    assert _AMOUNT.validate_python(text) == text


@pytest.mark.parametrize(
    "text", ["", " 1", "1\n", "1_000", "1,5", "0x1", "1/3", "NaN", "inf", "-inf", "e5", ".", "١", "1e", "1e1000"]
)
def test_what_is_no_plain_decimal_is_refused(text: str) -> None:
    with pytest.raises(ValidationError, match="is not a decimal number"):
        _AMOUNT.validate_python(text)


@pytest.mark.parametrize("text", ["0", "0.000", "-0", "-1", "-1e-9", "0e999"])
def test_what_is_not_above_zero_is_refused(text: str) -> None:
    with pytest.raises(ValidationError, match="is not above zero"):
        _AMOUNT.validate_python(text)


@pytest.mark.parametrize("text", ["1e31", "1e-31", "9e999", "1e-999", "9" * 32])
def test_what_no_grid_could_serve_is_refused(text: str) -> None:
    with pytest.raises(ValidationError, match="is outside 1e-30 to 1e30"):
        _AMOUNT.validate_python(text)


def test_a_text_without_end_is_refused_unread() -> None:
    with pytest.raises(ValidationError, match="at most 96 characters"):
        _AMOUNT.validate_python("1" * 97)
