"""What is compiled before the first job, and what beside it."""

import numpy as np

from kernels.array import ArrayInfo
from kernels.catalogue import OPERATIONS
from workers.device import without_gpu
from workers.warmup import in_single_precision, warm_up


def test_every_operation_on_real_numbers_that_takes_float32_is_compiled_for_it_too() -> None:
    single = {operation.name: operation for operation in in_single_precision(OPERATIONS.values())}
    assert {"sma", "ema", "rsi", "bollinger"} <= set(single)
    assert {"monte_carlo", "secure_aggregation"}.isdisjoint(single), "no real numbers go in"
    for operation in single.values():
        shapes = {name: np.shape(example["data"]) for name, example in operation.example.inputs.items()}
        operation.validate(operation.example.params, {name: ArrayInfo("float32", shapes[name]) for name in shapes})


def test_warming_up_in_float32_compiles_for_float32() -> None:
    from kernels.indicators import window_loops

    warm_up(in_single_precision([OPERATIONS["sma"]]), without_gpu("a test"))
    assert any(signature[0].dtype.name == "float32" for signature in window_loops._mean_chunks.signatures)
