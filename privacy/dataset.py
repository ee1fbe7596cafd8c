"""The name of a privacy budget's dataset: stored as written, compared in a normal form, so that look-alike names are
equal."""

import unicodedata

from warpdesk_server.privacy.errors import Refused

# Controls, invisible marks, surrogates, private and unassigned characters, separators of lines and paragraphs.
_REFUSED = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
# What else is drawn as nothing (Unicode's Default_Ignorable_Code_Point): joiner, fillers, variation selectors.
_INVISIBLE = frozenset({0x34F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x3164, 0xFFA0, *range(0x180B, 0x1810)})
_SELECTORS = (range(0xFE00, 0xFE10), range(0xE0100, 0xE01F0))


class NotADataset(Refused):
    """Raised for a privacy budget's dataset name that has invisible characters, or nothing but blanks."""

    code = "invalid-request"
    pointer = "/dataset"


def normal(name: str) -> str:
    """The normal form of the name of a budget's dataset: NFKC, without case, runs of blanks as one. Raises
    NotADataset."""
    for at, character in enumerate(name, start=1):
        code = ord(character)
        if (
            unicodedata.category(character) in _REFUSED
            or code in _INVISIBLE
            or any(code in selectors for selectors in _SELECTORS)
        ):
            raise NotADataset(f"character {at} of the name is U+{code:04X}, which cannot be seen: leave it out")
    form = " ".join(unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold()).split())
    if not form:
        raise NotADataset("the name has nothing but blanks")
    return form
