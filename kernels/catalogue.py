"""Every operation the service offers, in the order the documentation lists them."""

from kernels.dp_noise.spec import OPERATION as DP_NOISE
from kernels.federated_average.spec import OPERATION as FEDERATED_AVERAGE
from kernels.indicators.spec import BOLLINGER, EMA, RSI, SMA
from kernels.matmul.spec import OPERATION as MATMUL
from kernels.monte_carlo.spec import OPERATION as MONTE_CARLO
from kernels.operation import Operation
from kernels.secure_aggregation.spec import OPERATION as SECURE_AGGREGATION
from kernels.shamir.spec import OPERATIONS as SHAMIR
from kernels.vector.spec import OPERATIONS as VECTOR

_ALL: tuple[Operation, ...] = (
    MATMUL,
    SMA,
    EMA,
    RSI,
    BOLLINGER,
    MONTE_CARLO,
    DP_NOISE,
    SECURE_AGGREGATION,
    FEDERATED_AVERAGE,
    *SHAMIR,
    *VECTOR,
)

OPERATIONS: dict[str, Operation] = {operation.name: operation for operation in _ALL}
