"""The key outside the database: made once, kept to its owner, and never half there."""

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from warpdesk_server.privacy.seeds import Ring, Secrets, UnusableKey, WrongKey, noise_key


def test_a_key_is_made_once_and_for_its_owner_alone(tmp_path: Path) -> None:
    file = tmp_path / "ledger.key"
    (key,) = Ring(file).keys()
    assert len(key) == 32
    assert Ring(file).keys() == (key,)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [file]
    assert Ring(tmp_path / "another").keys() != (key,)


def test_many_that_start_at_once_agree_on_one_key(tmp_path: Path) -> None:
    for turn in range(20):
        file = tmp_path / f"{turn}.key"
        with ThreadPoolExecutor(16) as pool:
            keys = {ring.keys() for ring in pool.map(Ring, [file] * 16)}
        assert keys == {Ring(file).keys()}
    assert len(list(tmp_path.iterdir())) == 20


def test_a_key_that_others_may_read_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "ledger.key"
    Ring(file)
    for mode in (0o640, 0o604):
        file.chmod(mode)
        with pytest.raises(UnusableKey, match=f"others may read the ledger's key {file}: chmod 600"):
            Ring(file)


@pytest.mark.parametrize("text", ["", "00" * 31, "00" * 33, "zz" * 32, "\udcff" * 64])
def test_a_file_that_holds_no_key_is_refused_and_kept(tmp_path: Path, text: str) -> None:
    file = tmp_path / "ledger.key"
    file.write_bytes(text.encode(errors="surrogateescape"))
    file.chmod(0o600)
    with pytest.raises(UnusableKey, match=f"{file} does not hold the 64 hexadecimal digits"):
        Ring(file)
    assert file.read_bytes() == text.encode(errors="surrogateescape")


def test_a_place_where_no_key_can_be_made_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnusableKey, match=r"no key can be made for the ledger: .*nowhere"):
        Ring(tmp_path / "nowhere" / "ledger.key")


def test_a_seed_opens_with_its_key_for_its_charge_as_it_was_wrapped() -> None:
    ours, others = Secrets(bytes(32)), Secrets(bytes([1] * 32))
    seed = os.urandom(32)
    wrapped = ours.wrap(seed, "charge_1")
    assert ours.unwrap(wrapped, "charge_1") == seed
    assert ours.wrap(seed, "charge_1") != wrapped
    assert seed not in wrapped
    for secrets, text, charge_id in [
        (others, wrapped, "charge_1"),
        (ours, wrapped, "charge_2"),
        (ours, wrapped[:-1] + bytes([wrapped[-1] ^ 1]), "charge_1"),
        (ours, bytes([wrapped[0] ^ 1]) + wrapped[1:], "charge_1"),
        (ours, wrapped[:20], "charge_1"),
        (ours, b"", "charge_1"),
    ]:
        with pytest.raises(WrongKey, match=f"the seed of {charge_id} does not open with this key"):
            secrets.unwrap(text, charge_id)


def test_digests_depend_on_key_purpose_and_where_a_part_ends() -> None:
    ours, others = Secrets(bytes(32)), Secrets(bytes([1] * 32))
    digests = [
        ours.digest("params", "ab", "c"),
        ours.digest("params", "a", "bc"),
        ours.digest("params", "abc"),
        ours.digest("params", "ab", "c", ""),
        ours.digest("params", "ab", "c", None),
        ours.digest("inputs", "ab", "c"),
        others.digest("params", "ab", "c"),
    ]
    assert len(set(digests)) == len(digests)
    assert {len(digest) for digest in digests} == {64}


def test_the_noise_key_is_hkdf_over_all_that_its_bytes_depend_on() -> None:
    seed = bytes(range(32))
    info = b'["warpdesk/noise/v1","charge_1","p","i","v"]'
    assert noise_key(seed, "charge_1", "p", "i", "v") == HKDF(SHA256(), 32, salt=None, info=info).derive(seed)
    others = [("charge_2", "p", "i", "v"), ("charge_1", "i", "p", "v"), ("charge_1", "p", "i", "w")]
    assert len({noise_key(seed, *fields) for fields in others} | {noise_key(seed, "charge_1", "p", "i", "v")}) == 4


def test_a_key_has_32_bytes() -> None:
    with pytest.raises(UnusableKey, match="has 16 bytes and not 32"):
        Secrets(bytes(16))
