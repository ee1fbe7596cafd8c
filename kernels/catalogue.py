"""The catalogue: everything that the service can compute, in the order of the documentation."""

from warpdesk_server.kernels.backtest.spec import OPERATIONS as BACKTEST
from warpdesk_server.kernels.bars.spec import OPERATION as BARS
from warpdesk_server.kernels.basket_options.spec import OPERATION as BASKET_OPTION
from warpdesk_server.kernels.cross_section.spec import OPERATIONS as CROSS_SECTION
from warpdesk_server.kernels.dp_noise.spec import OPERATION as DP_NOISE
from warpdesk_server.kernels.federated_average.spec import OPERATION as FEDERATED_AVERAGE
from warpdesk_server.kernels.indicators.declared import DECLARED
from warpdesk_server.kernels.indicators.expression import EXPRESSION
from warpdesk_server.kernels.matmul.spec import OPERATION as MATMUL
from warpdesk_server.kernels.monte_carlo.spec import OPERATION as MONTE_CARLO
from warpdesk_server.kernels.monte_carlo.until import TASK as MONTE_CARLO_UNTIL
from warpdesk_server.kernels.operation import Computation, Operation
from warpdesk_server.kernels.plans import Plan, plan_of
from warpdesk_server.kernels.portfolio.optimize import TASK as OPTIMIZE
from warpdesk_server.kernels.portfolio.sequential.spec import OPERATIONS as SEQUENTIAL
from warpdesk_server.kernels.portfolio.spec import OPERATIONS as PORTFOLIO
from warpdesk_server.kernels.risk.spec import OPERATIONS as RISK
from warpdesk_server.kernels.secure_aggregation.spec import OPERATION as SECURE_AGGREGATION
from warpdesk_server.kernels.shamir.spec import OPERATIONS as SHAMIR
from warpdesk_server.kernels.task import Task
from warpdesk_server.kernels.tridiagonal.spec import OPERATIONS as TRIDIAGONAL
from warpdesk_server.kernels.vanilla_options.spec import OPERATIONS as VANILLA_OPTIONS
from warpdesk_server.kernels.vector.spec import OPERATIONS as VECTOR

_ALL: tuple[Operation, ...] = (
    MATMUL,
    *DECLARED,
    EXPRESSION,
    BARS,
    *CROSS_SECTION,
    *VANILLA_OPTIONS,
    *PORTFOLIO,
    *SEQUENTIAL,
    *BACKTEST,
    MONTE_CARLO,
    BASKET_OPTION,
    *RISK,
    DP_NOISE,
    SECURE_AGGREGATION,
    FEDERATED_AVERAGE,
    *SHAMIR,
    *TRIDIAGONAL,
    *VECTOR,
)

OPERATIONS: dict[str, Operation] = {operation.name: operation for operation in _ALL}

TASKS: dict[str, Task] = {task.name: task for task in (MONTE_CARLO_UNTIL, OPTIMIZE)}

PLAN: Plan = plan_of(OPERATIONS)

CATALOGUE: dict[str, Computation] = {**OPERATIONS, **TASKS, PLAN.name: PLAN}
