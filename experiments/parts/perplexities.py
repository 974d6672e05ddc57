"""How surprising a policy finds what a world's expert does: the perplexity of the known answer of each prompt."""

import json
import random
from collections.abc import Sequence

import numpy as np

from experiments.parts.encoding import encode_sft
from experiments.parts.judges.base import in_batches
from experiments.parts.setup import Setup
from experiments.parts.training import jit_score
from rl_jax.core.types import Params
from rl_jax.data.checks import RECORDED
from rl_jax.envs.text.recorded import play
from rl_jax.envs.text.world import World
from rl_jax.selection.hardest import perplexity
from rl_jax.training.scoring import make_score


def of_known_answers(setup: Setup, params: Params, records: Sequence[dict], env: World) -> np.ndarray:
    """exp(-mean log pi) over the expert's tokens, each turn's end among them, given what it read. float64 [N].

    Args:
      setup: of the run.
      params: of the policy, on its mesh.
      records: N prompts of the world's task.
      env: a world whose episodes have one segment (no Step.anew).
    """
    length, chunk = setup.config.rollout.completion_length, setup.config.score.chunk
    score, told = jit_score(make_score(setup.model, completion_length=length, chunk=chunk), setup), []
    for record in records:
        info = json.loads(record["info"])
        turns = play(env, record["prompt"], info, random.Random(0), 1.0)
        told.append(record | {"completion": turns[-1], "info": json.dumps(info | {RECORDED: turns})})
    batch, mask = encode_sft(setup, told)
    size = setup.config.sample.prompts_per_step * setup.config.sample.group_size
    log_probs = in_batches(setup, lambda *given: score(*given).log_probs, params, batch, size)
    return perplexity(np.asarray(log_probs), np.asarray(mask))
