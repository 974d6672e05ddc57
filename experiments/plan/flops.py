"""The FLOPs of a program, counted in its jaxpr with loops multiplied out, and those that a formula expects.

The compiler's own figure counts a loop's body once, whatever the number of iterations.
"""

import math

import jax

from rl_jax.models.transformer.config import RECOMPUTES_ALL
from rl_jax.models.transformer.model import TransformerConfig


def count(jaxpr, *, while_turns: int = 1) -> float:
    """The FLOPs of every matrix product in a (closed) jaxpr: 2 m n k each, times the iterations of the loops around it.

    The branch of a cond with the most FLOPs counts.

    Args:
      jaxpr: of the program.
      while_turns: iterations of each while loop, which the jaxpr does not contain.
    """
    jaxpr = getattr(jaxpr, "jaxpr", jaxpr)
    return sum(_of_equation(equation, while_turns) for equation in jaxpr.eqns)


def _of_equation(equation, while_turns: int) -> float:
    name, params = equation.primitive.name, equation.params
    if name == "dot_general":
        return _of_product(equation)
    if name == "scan":
        return params["length"] * count(params["jaxpr"], while_turns=while_turns)
    if name == "while":
        return while_turns * count(params["body_jaxpr"], while_turns=while_turns)
    if name == "cond":
        return max(count(branch, while_turns=while_turns) for branch in params["branches"])
    inner = [x for x in jax.tree.leaves(list(params.values()), is_leaf=_is_jaxpr) if _is_jaxpr(x)]
    devices = params["mesh"].size if name == "shard_map" else 1  # its jaxpr is of one of them
    return devices * sum(count(x, while_turns=while_turns) for x in inner)


def _is_jaxpr(x) -> bool:
    return hasattr(getattr(x, "jaxpr", x), "eqns")


def _of_product(equation) -> float:
    (contracting, _), _ = equation.params["dimension_numbers"]
    left = equation.invars[0].aval.shape
    return 2.0 * math.prod(equation.outvars[0].aval.shape) * math.prod(left[i] for i in contracting)


def expected_train_flops(config: TransformerConfig, *, rows: int, prompt_length: int, completion_length: int) -> float:
    """FLOPs of a dense model's train step: 6 P_body T + 6 P_head C + attention, times the factor of rematerialisation.

    Per row of T = prompt + completion tokens: a product with n weights takes 2 n FLOPs per token forward and 4 n
    backward. Causal attention takes 4 H h per pair of tokens that see each other, T^2 / 2 pairs, forward, and twice
    that backward. remat="full" repeats a block's forward except its last product, MLP to model, which no gradient
    needs. The head's forward always runs twice (rl_jax.training.scoring).

    Args:
      config: the model's.
      rows: of the batch.
      prompt_length: tokens per prompt.
      completion_length: tokens per completion, C.
    """
    c = config
    heads = (c.num_heads + 2 * c.num_kv_heads) * c.head_dim
    mlp = (3 if c.gated_mlp else 2) * c.mlp_dim
    body = c.num_layers * c.embed_dim * (heads + c.num_heads * c.head_dim + mlp)
    length = prompt_length + completion_length
    attention = c.num_layers * 4 * c.num_heads * c.head_dim * length**2 / 2
    once = 2 * body * length + attention
    again = once - 2 * c.num_layers * c.embed_dim * c.mlp_dim * length if c.remat in RECOMPUTES_ALL else 0
    head = 2 * c.embed_dim * c.vocab_size * 4
    return float(rows * (3 * once + again + head * completion_length))
