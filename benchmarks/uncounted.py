"""Run a module of the service with nothing counted, for `instrumentation`: `python -m benchmarks.uncounted MODULE ...`.

Out of the scripts go the lines that count and what they need; a process adds nothing up and tells Redis nothing. What
stays is small: with each job two times are passed.
"""

import re
import runpy
import sys

from workers import counts, scripts

# Calls that count, alone on their line; what is left of a function that did nothing else is empty, or never called.
_COUNTS = re.compile(
    r"^ *(?:if [^\n]* then )?"
    r"(?:pcall\(keep_counts\)|count_(?:ending|enqueued)\(|count(?:_hourly)?\('|tell_times\()[^\n]*\n",
    re.MULTILINE,
)


def strip() -> None:
    """Take counting out of this process. Raises where a script has it in a form that is not known here."""
    for name, text in list(vars(scripts).items()):
        if name.isupper() and not name.startswith("_") and isinstance(text, str) and "pcall(keep_counts)" in text:
            bare = _COUNTS.sub("", text.replace(scripts._COUNTING, ""))
            if "keep_counts" in bare:
                raise SystemExit(f"{name} still counts: {bare[bare.index('keep_counts') - 80 :][:160]}")
            setattr(scripts, name, bare)
    if "keep_counts" in scripts.FINISH + scripts.ENQUEUE + scripts.CLAIM:
        raise SystemExit("nothing was taken out of FINISH, ENQUEUE or CLAIM")
    counts.Tally.add = counts.Tally.later = lambda *_, **__: None  # type: ignore[method-assign,assignment]


if __name__ == "__main__":
    strip()
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
