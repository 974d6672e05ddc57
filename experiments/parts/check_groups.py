"""Whether config.algorithm's choices take groups of config.sample.group_size, and see them whole."""

import functools
import inspect

import jax
import jax.numpy as jnp

from rl_jax import advantages
from rl_jax.core.binding import bind, needs
from rl_jax.losses import policy

LENGTH = 4  # of the completions that are made up


def check(config) -> None:
    """Traces the advantage for a step's rewards; an advantage that needs more than lengths and masks is not tried.

    Args:
      config: of experiments.grpo; one without an algorithm.advantage (PPO) passes.

    Raises:
      ValueError: if the advantage refuses the groups, or if a surrogate of pairs would not see them whole; names the
        fields.
    """
    _check_whole(config)
    if "advantage" not in config.algorithm:
        return
    size, spec = config.sample.group_size, config.algorithm.advantage.to_dict()
    rows = config.sample.prompts_per_step * size
    fn = bind(spec, advantages, max_length=LENGTH)
    of_rows = functools.partial(jax.ShapeDtypeStruct, (rows,))
    known = {
        "lengths": of_rows(jnp.float32),
        "truncated": of_rows(bool),
        "greedy_rewards": of_rows(jnp.float32),
        "completion_mask": jax.ShapeDtypeStruct((rows, LENGTH), bool),
    }
    needed = needs(fn) - {"group_size"}
    if needed - set(known):
        return
    if "group_size" in needs(fn):
        fn = functools.partial(fn, group_size=size)
    try:
        jax.eval_shape(fn, of_rows(jnp.float32), **{name: known[name] for name in needed})
    except ValueError as error:
        raise ValueError(
            f"sample.group_size={size} does not go with algorithm.advantage.fn={spec['fn']!r}: {error}"
        ) from None


def _check_whole(config) -> None:
    """Raises ValueError if the surrogate takes a group_size and the rows of a group may be parted in an update."""
    algorithm, train = config.algorithm, config.train
    fn = bind(algorithm.surrogate.to_dict(), policy)
    if "group_size" not in inspect.signature(fn).parameters:
        return
    set_to = {
        "train.minibatches": (train.minibatches, 1),
        "train.micro_batches": (train.micro_batches, 1),
        "algorithm.row_selection.fn": (algorithm.row_selection.fn, ""),
        "packing.mode": (config.packing.mode, "padded"),  # packed rows are dealt to devices by their length
    }
    for field, (found, wanted) in set_to.items():
        if found != wanted:
            raise ValueError(
                f"{field}={found!r} parts the rows of a group, which algorithm.surrogate.fn={algorithm.surrogate.fn!r} "
                f"compares with each other: set it to {wanted!r}"
            )
