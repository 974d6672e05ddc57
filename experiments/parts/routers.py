"""How a mixture of experts spreads the rows of a step over its experts: router/... of models.transformer.moe."""

from collections.abc import Callable

import jax

from experiments.parts.processes import to_host
from experiments.parts.setup import Setup, model_config
from experiments.parts.training import with_adapters
from rl_jax.core.packed_rows import rows_of
from rl_jax.core.types import Packed, Params, TokenBatch
from rl_jax.models.transformer.model import make_routed_apply
from rl_jax.models.transformer.moe import router_metrics
from rl_jax.training import sharding


def make_router_metrics(setup: Setup) -> Callable[[Params, TokenBatch | Packed], dict[str, float]]:
    """What a step logs of its routers: one more forward pass over its rows, of models with experts only.

    Args:
      setup: of the run.

    Returns:
      (params, rows) -> metrics. params: trained ones; rows: as the model reads them, whose recorded experts, if there
      are any, are the ones that count. {} if the model has no experts.
    """
    config = model_config(setup)
    if not config.num_experts:
        return lambda params, rows: {}
    apply = with_adapters(setup, make_routed_apply(config))

    def router(params, rows):
        stats = apply(params, rows_of(rows))[1]
        return {name: mean.value() for name, mean in router_metrics(stats).items()}

    measure = jax.jit(
        sharding.on_mesh(router, setup.mesh) if setup.mesh.size > 1 else router,
        in_shardings=(setup.param_shardings, sharding.batch_sharding(setup.mesh)),
        out_shardings=sharding.replicated(setup.mesh),
    )
    return lambda params, rows: {
        name: float(value) for name, value in jax.device_get(to_host(measure(params, rows))).items()
    }
