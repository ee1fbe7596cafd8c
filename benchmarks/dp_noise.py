"""What does exact noise cost? A million values beside OpenDP (fewer, per value) and the unsafe numpy.random.laplace."""

import secrets

import numpy as np

from benchmarks.report import Timing, interleave, show
from kernels.dp_noise.cpu import dp_noise
from kernels.dp_noise.spec import DpNoise

_COUNT = 1_000_000
_OPENDP_COUNT = 2_000  # OpenDP takes tens of microseconds a value
_SCALE = 2.0


def main() -> None:
    import opendp.prelude as opendp

    opendp.enable_features("contrib")
    space = opendp.vector_domain(opendp.atom_domain(T=float, nan=False))
    laplace = opendp.m.make_laplace(space, opendp.l1_distance(T=float), scale=_SCALE)
    gaussian = opendp.m.make_gaussian(space, opendp.l2_distance(T=float), scale=_SCALE)

    values = np.random.default_rng(1).normal(0, 100, _COUNT)
    few = values[:_OPENDP_COUNT].tolist()
    records = values.reshape(-1, 10)
    random = np.random.default_rng(2)
    rows = []
    for name, functions in {
        "Laplace": {
            "Warpdesk": (_COUNT, lambda: _release("discrete_laplace", "aggregate", values)),
            "OpenDP make_laplace, float64 vector": (_OPENDP_COUNT, lambda: laplace(few)),
            "numpy.random.laplace (unsafe)": (_COUNT, lambda: values + np.random.laplace(0, _SCALE, _COUNT)),
            "Generator.laplace (unsafe)": (_COUNT, lambda: values + random.laplace(0, _SCALE, _COUNT)),
        },
        "Gaussian": {
            "Warpdesk": (_COUNT, lambda: _release("discrete_gaussian", "aggregate", values)),
            "OpenDP make_gaussian, float64 vector": (_OPENDP_COUNT, lambda: gaussian(few)),
            "Generator.normal (unsafe)": (_COUNT, lambda: values + random.normal(0, _SCALE, _COUNT)),
        },
        "clip 100,000 records of 10 in L2, sum, Gaussian": {
            "Warpdesk": (_COUNT, lambda: _release("discrete_gaussian", "records", records)),
            "NumPy in float64 (unsafe)": (_COUNT, lambda: _numpy_sum(records, random)),
        },
    }.items():
        timings = interleave({peer: function for peer, (_, function) in functions.items()}, repeats=5)
        ours = timings["Warpdesk"].median / functions["Warpdesk"][0]
        for peer, (count, _) in functions.items():
            timing = timings[peer]
            each = Timing(*(seconds / count for seconds in (timing.median, timing.low, timing.high)))
            rows.append(
                {"what": name, "by": peer, "values": count, "per value": each, "Warpdesk is": _ratio(each.median, ours)}
            )
    show("dp_noise", rows)


def _release(mechanism: str, mode: str, values: "np.ndarray[tuple[int, ...], np.dtype[np.float64]]") -> object:
    params = {"mechanism": mechanism, "mode": mode, "unaccounted": True}
    if mode == "records":
        params |= {"clip": {"norm": "l2", "bound": "300"}, "neighbouring": "add_remove"}
    else:
        params |= {"sensitivity": {"norm": "linf", "value": "1"}}
    # Laplace over n coordinates that may all move: a scale of 2 is an epsilon of n / 2. Gaussian: sigma as it is.
    params |= {"epsilon": str(values.size / _SCALE)} if mechanism == "discrete_laplace" else {"sigma": str(_SCALE)}
    return dp_noise(DpNoise.model_validate(params), values, key=secrets.token_bytes(32))


def _numpy_sum(records: "np.ndarray[tuple[int, ...], np.dtype[np.float64]]", random: np.random.Generator) -> object:
    norms = np.sqrt((records**2).sum(axis=1, keepdims=True))
    clipped = records * np.minimum(1.0, 300.0 / norms)
    return clipped.sum(axis=0) + random.normal(0, _SCALE, records.shape[1])


def _ratio(other: float, ours: float) -> str:
    return "1" if other == ours else f"{other / ours:.3g}x as fast" if other > ours else f"{ours / other:.3g}x slower"


if __name__ == "__main__":
    main()
