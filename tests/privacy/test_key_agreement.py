"""Two clients agree on keys that are theirs alone, by the definition and in one direction each."""

import pytest

from tests.kernels.secure_aggregation.test_protocol import drawn, hkdf, x25519
from warpdesk.secagg.key_agreement import pair_seed, public_key, share_key

ROUND = "round_" + 32 * "a"
ONE, TWO = drawn("one"), drawn("two")


def test_a_public_key_is_the_one_of_rfc_7748() -> None:
    # Section 6.1, Bob.
    bob = bytes.fromhex("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb")
    assert public_key(bob).hex() == "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f"


@pytest.mark.parametrize(("sender", "recipient"), [(3, 300), (300, 3)])
def test_the_key_of_shares_is_that_of_the_definition_for_both(sender: int, recipient: int) -> None:
    low, high = public_key(ONE), public_key(TWO)
    direction = sender.to_bytes(8, "little") + recipient.to_bytes(8, "little")
    info = b"warpdesk/secagg/v1/share" + low + high + direction
    expected = hkdf(x25519(ONE, high), ROUND.encode(), info)
    assert share_key(3, ONE, 300, high, ROUND, sender=sender) == expected
    assert share_key(300, TWO, 3, low, ROUND, sender=sender) == expected


def test_no_two_uses_of_two_keys_give_the_same() -> None:
    public = public_key(TWO)
    found = {
        pair_seed(1, ONE, 2, public, ROUND),
        pair_seed(1, ONE, 2, public, "another"),
        share_key(1, ONE, 2, public, ROUND, sender=1),
        share_key(1, ONE, 2, public, ROUND, sender=2),
        share_key(1, ONE, 3, public, ROUND, sender=1),
    }
    assert len(found) == 5


@pytest.mark.parametrize("number", [2**255 - 19, 2**255 - 10, 2**255 - 1, 2**255 + 9, 2**256 - 1])
def test_a_second_encoding_of_a_point_is_refused(number: int) -> None:
    with pytest.raises(ValueError, match=r"below 2\^255 - 19, and this one is not"):
        pair_seed(1, ONE, 2, number.to_bytes(32, "little"), ROUND)


@pytest.mark.parametrize("point", [bytes(32), (1).to_bytes(32, "little")])
def test_a_public_key_of_low_order_is_refused(point: bytes) -> None:
    with pytest.raises(ValueError, match="Error computing shared key"):
        pair_seed(1, ONE, 2, point, ROUND)
