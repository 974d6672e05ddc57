"""What an auxiliary loss is made of."""

from collections.abc import Callable
from typing import NamedTuple

import chex


class Auxiliary(NamedTuple):
    """A loss beside the policy's.

    Attributes:
      init: (key) -> params of its own; they are trained with the agent's.
      loss: (params, features, observations [n, ...], actions float [n, A], next_observations [n, ...], key) -> float
        []; features: observations -> z [n, width], differentiated too.
      coef: its weight.
      begin: () -> what it keeps from minibatch to minibatch; None keeps nothing.
      observe: (params, features, observations, key, kept, axis_name) -> (kept, {name: float [n, ...]}); the dict is
        what `loss` gets as its last argument, `remembered`.
      reads_extras: whether `loss` gets the batch's extras as its last argument though it keeps nothing.
      look: (observations [B, T, ...], next_observations, actions float [B, T, A], rewards [B, T], done bool [B, T]) ->
        {name: [B, T, ...]}, added to the batch's extras; None adds nothing.
    """

    init: Callable
    loss: Callable
    coef: float | chex.Array
    begin: Callable | None = None
    observe: Callable | None = None
    reads_extras: bool = False
    look: Callable | None = None
