"""Tunix's agentic GRPO learner on the work of experiments.bench.asynchronous_peers: PYTHON tunix_agentic.py WORK.json.

PYTHON has `google-tunix==0.1.7`. The model is its own Qwen3, randomly initialised; the trainer and the sampler have a
simulated device each. Its learner samples every row by a call of its own, as its agents do; a row gets as many tokens
as the work says. Prints one JSON line.
"""

import json
import logging
import os
import sys
import time

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=2"
logging.disable(logging.WARNING)

import jax  # noqa: E402
import numpy as np  # noqa: E402
import optax  # noqa: E402
from flax import nnx  # noqa: E402
from tunix.models.qwen3 import model as qwen3  # noqa: E402
from tunix.rl import rl_cluster  # noqa: E402
from tunix.rl.agentic import agentic_grpo_learner  # noqa: E402
from tunix.rl.rollout import base_rollout  # noqa: E402

work = json.load(open(sys.argv[1]))
sizes, lengths, group_size = work["sizes"], work["lengths"], work["group_size"]  # lengths: [groups][rows]
steps, batch, vocab = work["steps"], work["prompts_per_step"], sizes["vocab"]
LONGEST = max(map(max, lengths)) + 1  # a row that reaches the learner's limit is given back without tokens


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


class Chat:
    """No template: the words of all messages."""

    def parse(self, messages, add_generation_prompt=False, is_first_msg=False):
        words = [np.asarray(message["content"]).item() for message in messages]
        return " ".join(filter(None, words))


def prompts():
    """One batch per step. The sampler adds BOS, hence each prompt has one token less."""
    for step in range(steps):
        rows = work["prompts"][step * batch : (step + 1) * batch]
        yield {"prompts": np.array([" ".join(map(str, row[1:])) for row in rows])}


def reward(prompts, completions, **_):
    """The fraction of even tokens: cheap, and different between completions."""
    return [float(np.mean([int(word) % 2 == 0 for word in text.split()] or [0.0])) for text in completions]


config = qwen3.ModelConfig(
    num_layers=sizes["layers"], vocab_size=vocab, embed_dim=sizes["d"], hidden_dim=sizes["ff"],
    num_heads=sizes["heads"], head_dim=sizes["head_dim"], num_kv_heads=sizes["kv"], rope_theta=1_000_000,
    norm_eps=1e-6, use_tied_embedding=True,
)  # fmt: skip
trainer, sampler = (jax.sharding.Mesh(np.array([d]).reshape(1, 1), ("fsdp", "tp")) for d in jax.devices()[:2])
with trainer:
    actor = qwen3.Qwen3(config, rngs=nnx.Rngs(0))
Role = rl_cluster.Role
cluster = rl_cluster.RLCluster(
    actor=actor, tokenizer=Tokenizer(),
    cluster_config=rl_cluster.ClusterConfig(
        role_to_mesh={Role.ACTOR: trainer, Role.REFERENCE: trainer, Role.ROLLOUT: sampler},
        rollout_engine="vanilla",
        training_config=rl_cluster.RLTrainingConfig(
            actor_optimizer=optax.adamw(1e-5), eval_every_n_steps=10**9, max_steps=steps,
            mini_batch_size=batch, train_micro_batch_size=batch,
        ),
        rollout_config=base_rollout.RolloutConfig(
            max_tokens_to_generate=LONGEST, max_prompt_length=work["prompt_length"],
            kv_cache_size=work["prompt_length"] + LONGEST, temperature=1.0, top_p=1.0, top_k=None,
            return_logprobs=True,
        ),
    ),
)  # fmt: skip
algorithm = agentic_grpo_learner.GRPOConfig(
    num_generations=group_size, num_iterations=1, beta=0.0, epsilon=0.2, off_policy_steps=work["eta"],
    max_response_length=LONGEST, max_concurrency=batch * group_size, sampler_is="token",
)  # fmt: skip
learner = agentic_grpo_learner.GRPOLearner(
    rl_cluster=cluster, reward_fns=reward, algo_config=algorithm, chat_parser=Chat()
)
model_call, update = learner._model_call, cluster.update_actor
ends, cpu_s, calls, trained, tokens, ages = [], [], [], [], [], []


def cut_call(chats, env=None, max_generation_steps=None):
    """The model's call for one row, with the row's length."""
    place = env.extra_kwargs
    result = model_call(chats, env, max_generation_steps=lengths[place["group_id"]][place["pair_index"]])
    calls.append(len(result.tokens[0]))
    return result


def timed_update(examples, *args, **kwargs):
    """update_actor, timed to its end."""
    for example in examples:
        trained.append(example.completion_ids.shape[0])
        tokens.append(int(np.sum(example.completion_mask)))
        ages.append(learner.policy_version - int(np.min(example.policy_version)))
    result = update(examples, *args, **kwargs)
    jax.block_until_ready(jax.tree.leaves(nnx.state(cluster.actor_trainer.model, nnx.Param)))
    ends.append(time.perf_counter())
    cpu_s.append(time.process_time())
    return result


learner._model_call, cluster.update_actor = cut_call, timed_update
for length in sorted({length for row in lengths for length in row}):
    # One by one: when many threads made the first call, which compiles, the process mostly died (SIGSEGV).
    cluster.generate([" ".join(["7"] * (work["prompt_length"] - 1))], max_generation_steps=length)
learner.train(prompts())
print(json.dumps({
    "name": "tunix", "step_s": np.diff(ends).tolist(), "cpu_s": np.diff(cpu_s).tolist(), "age": max(ages),
    "lost": len(calls) - sum(trained), "tokens_trained": sum(tokens),
}))  # fmt: skip
