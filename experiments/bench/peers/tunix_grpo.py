"""Tunix's GRPO learner on the work of experiments.bench.grpo: PYTHON tunix_grpo.py WORK.json -> one JSON line.

PYTHON has `google-tunix==0.1.7`. The model is its own Qwen3, randomly initialised. Its sampler decodes all rows until
the longest has ended, as it does with an EOS, too; the completions are then cut to the work's lengths.
"""

import json
import logging
import os
import sys
import time

os.environ.setdefault("JAX_PLATFORMS", "cpu")
logging.disable(logging.WARNING)

import jax  # noqa: E402
import numpy as np  # noqa: E402
import optax  # noqa: E402
from flax import nnx  # noqa: E402
from tunix.models.qwen3 import model as qwen3  # noqa: E402
from tunix.rl import rl_cluster  # noqa: E402
from tunix.rl.grpo import grpo_learner  # noqa: E402
from tunix.rl.rollout import base_rollout  # noqa: E402

work = json.load(open(sys.argv[1]))
sizes, lengths = work["sizes"], work["lengths"]  # lengths: [steps][rows]
steps, vocab = len(lengths), sizes["vocab"]


class Tokenizer:
    """Ids as text, "7 12 9". EOS lies outside the vocabulary: nothing ends before its length."""

    def encode(self, text, **_):
        return [int(word) for word in text.split()]

    def decode(self, ids, **_):
        return " ".join(str(int(token)) for token in ids)

    def bos_id(self):
        return 1

    def eos_id(self):
        return vocab + 1

    def pad_id(self):
        return 0


class Prompts:
    """One batch per step. The sampler adds BOS, hence each prompt has one token less."""

    def __iter__(self):
        for batch in work["prompts"]:
            yield {"prompts": np.array([" ".join(map(str, prompt[1:])) for prompt in batch])}


ends, rollouts, updates = [], [], []


def reward(prompts, completions, **_):
    """The fraction of even tokens: cheap, and different between completions."""
    return [float(np.mean([int(word) % 2 == 0 for word in text.split()] or [0.0])) for text in completions]


mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("fsdp", "tp"))
config = qwen3.ModelConfig(
    num_layers=sizes["layers"], vocab_size=vocab, embed_dim=sizes["d"], hidden_dim=sizes["ff"],
    num_heads=sizes["heads"], head_dim=sizes["head_dim"], num_kv_heads=sizes["kv"], rope_theta=1_000_000,
    norm_eps=1e-6, use_tied_embedding=True,
)  # fmt: skip
with mesh:
    actor = qwen3.Qwen3(config, rngs=nnx.Rngs(0))
    reference = qwen3.Qwen3(config, rngs=nnx.Rngs(0)) if work["beta"] else None
prompt_length, completion_length = work["prompt_length"], max(max(row) for row in lengths)
cluster = rl_cluster.RLCluster(
    actor=actor, reference=reference, tokenizer=Tokenizer(),
    cluster_config=rl_cluster.ClusterConfig(
        role_to_mesh={rl_cluster.Role[name]: mesh for name in ("ACTOR", "REFERENCE", "ROLLOUT")},
        rollout_engine="vanilla",
        training_config=rl_cluster.RLTrainingConfig(
            actor_optimizer=optax.adamw(1e-5), eval_every_n_steps=10**9, max_steps=steps,
            mini_batch_size=len(work["prompts"][0]), train_micro_batch_size=len(work["prompts"][0]),
        ),
        rollout_config=base_rollout.RolloutConfig(
            max_tokens_to_generate=completion_length, max_prompt_length=prompt_length,
            kv_cache_size=prompt_length + completion_length, temperature=1.0, top_p=1.0, top_k=None,
        ),
    ),
)  # fmt: skip
generate, update = cluster.generate, cluster.update_actor


def cut_generate(*args, **kwargs):
    """generate, with the completions cut to this step's lengths."""
    start = time.perf_counter()
    result = generate(*args, **kwargs)
    wanted = lengths[len(rollouts)]
    result.tokens = [tokens[:length] for tokens, length in zip(result.tokens, wanted, strict=True)]
    result.text = [" ".join(text.split()[:length]) for text, length in zip(result.text, wanted, strict=True)]
    rollouts.append(time.perf_counter() - start)
    return result


def timed_update(*args, **kwargs):
    """update_actor, timed to its end."""
    start = time.perf_counter()
    result = update(*args, **kwargs)
    jax.block_until_ready(jax.tree.leaves(nnx.state(cluster.actor_trainer.model, nnx.Param)))
    ends.append(time.perf_counter())
    updates.append(ends[-1] - start)
    return result


cluster.generate, cluster.update_actor = cut_generate, timed_update
algorithm = grpo_learner.GRPOConfig(
    num_generations=work["group_size"], num_iterations=1, beta=work["beta"], epsilon=0.2
)
learner = grpo_learner.GRPOLearner(rl_cluster=cluster, reward_fns=reward, algo_config=algorithm)
begin = time.perf_counter()
learner.train(Prompts())
step_seconds = np.diff([begin, *ends]).tolist()
print(json.dumps({"name": "tunix", "step_s": step_seconds, "rollout_s": rollouts, "update_s": updates}))
