"""The state of a round's client: its secrets, the messages it has sent and received, and the file that keeps them."""

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from warpdesk.durable import force, write_new
from warpdesk.secagg.masking import new_secret
from warpdesk.secagg.quantisation import Quantisation

_Key = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]  # one spelling for each key, so that equal ones are found


class Message(BaseModel):
    model_config = ConfigDict(frozen=True)


class Keys(Message):
    mask_public: _Key
    share_public: _Key


class Roster(Message):
    round: str
    clients: dict[int, Keys]
    ring: tuple[int, ...]
    degree: int
    threshold: int
    dimension: int
    modulus_bits: int
    quantisation: Quantisation


class Commitments(Message):
    self_seed: str
    mask_key: str


class Sent(Message):
    ciphertexts: dict[int, str]
    commitments: dict[int, Commitments]


class Received(Message):
    ciphertext: str
    commitments: Commitments


class Delivery(Message):
    sharers: tuple[int, ...]
    shares: dict[int, Received]


class Shares(Message):
    """The shares of one client's two secrets that another client holds, as hex."""

    self_seed: str = Field(repr=False)
    mask_key: str = Field(repr=False)


class Outcome(Message):
    survivors: tuple[int, ...]
    dropped: tuple[int, ...]


class State(BaseModel):
    """A round client's state in its file. Each decision is set once and never changed."""

    round: str
    client: int
    mask_private: str = Field(repr=False)
    share_private: str = Field(repr=False)
    self_seed: str = Field(repr=False)
    roster: Roster | None = None
    sent: Sent | None = Field(default=None, repr=False)
    held: dict[int, Shares] = Field(default={}, repr=False)  # by owner; its own from `sent` on, others' from `sharers`
    sharers: tuple[int, ...] | None = None
    vector: str | None = Field(default=None, repr=False)  # SHA-256 of the masked vector
    outcome: Outcome | None = None

    def save(self, file: Path | None) -> None:
        """Write the state of a round's client to its file, if it has one, atomically."""
        if file is not None:
            written = file.with_name(file.name + ".new")
            written.unlink(missing_ok=True)
            write_new(written, self.model_dump_json().encode())
            written.replace(file)
            force(file.parent)


def fresh(round_id: str, client: int) -> State:
    secret, share = new_secret(), new_secret()
    return State(
        round=round_id,
        client=client,
        mask_private=secret.private.hex(),
        self_seed=secret.self_seed.hex(),
        share_private=share.private.hex(),
    )


def restored(state: Path | None) -> State | None:
    if state is None or not state.exists():
        return None
    try:
        return State.model_validate_json(state.read_bytes())
    except ValidationError as error:
        # The file holds secrets, which pydantic's own sentence would repeat.
        raise ValueError(f"{state} is not the state of a client: {error.error_count()} fields do not fit") from None
