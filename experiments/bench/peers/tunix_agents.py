"""Tunix's agentic GRPO learner on the work of experiments.bench.agents_peers: PYTHON tunix_agents.py WORK.json.

PYTHON has `google-tunix==0.1.7`. The model is its own Llama with the work's weights, on one device, which samples and
trains in turn (off_policy_steps=0). Prints one JSON line. Five things are put in place, each to the peer's advantage:

- Its Llama turns positions by a base of 1,000,000 whatever rope_theta its config has: it gets the work's.
- Its sampler draws every call with the same key if the config has no seed, so the episodes of a group would be equal:
  each call gets a seed of its own.
- It gives a turn back without its EOS. The EOS is written with the calculator's answer, so that the model reads what
  it has sampled; it is not trained on.
- Programs are compiled one by one before the threads begin, which die of SIGSEGV if they compile together.
- max_prompt_length is that of the prompts; the sampler rounds longer contexts up to a power of two by itself.
"""

import copy
import dataclasses
import functools
import itertools
import json
import logging
import os
import sys

os.environ.setdefault("JAX_PLATFORMS", "cpu")
logging.disable(logging.WARNING)

import calculator_game  # noqa: E402
import jax  # noqa: E402
import numpy as np  # noqa: E402
import optax  # noqa: E402
from flax import nnx  # noqa: E402
from tunix.models.llama3 import model as llama3  # noqa: E402
from tunix.models.llama3 import params as llama3_params  # noqa: E402
from tunix.rl import rl_cluster  # noqa: E402
from tunix.rl.agentic import agentic_grpo_learner  # noqa: E402
from tunix.rl.agentic.agents import agent_types, base_agent  # noqa: E402
from tunix.rl.agentic.environments import base_environment  # noqa: E402
from tunix.rl.rollout import base_rollout  # noqa: E402

work = json.load(open(sys.argv[1]))
sizes, batch, group_size, steps = work["sizes"], work["prompts_per_step"], work["group_size"], work["steps"]
counts = calculator_game.Counts(steps, batch * group_size)
EOS = "$"  # written for the token
ROW = work["row"] + 1  # a row that reaches the learner's limit is given back without its last turn


class Characters:
    """One token per character, after pad, BOS and EOS."""

    _ids = {character: index for index, character in enumerate(work["alphabet"], 3)} | {EOS: 2}

    def encode(self, text, **_):
        return [self._ids[character] for character in text]

    def decode(self, ids, **_):
        return "".join(work["alphabet"][token - 3] for token in ids if token >= 3)

    def bos_id(self):
        return 1

    def eos_id(self):
        return 2

    def pad_id(self):
        return 0


class Chat:
    """The contents one after the other."""

    def parse(self, messages, add_generation_prompt=False, is_first_msg=False):
        return "".join(np.asarray(message["content"]).item() for message in messages)


class Agent(base_agent.ConversationAgentBase):
    """Says to the environment what the model says."""

    def _init_messages(self, system_prompt):
        self._messages = []

    def _observation_to_messages(self, observation, reward, done, info):
        if isinstance(observation, str):
            self._messages.append({"role": "tool", "content": EOS + observation})
        else:
            super()._observation_to_messages(observation, reward, done, info)

    def update_from_model(self, response, **_):
        self._messages.append({"role": "assistant", "content": response})
        action = agent_types.Action(action=response)
        self.trajectory.steps.append(
            agent_types.Step(chat_completions=copy.copy(self._messages), action=action, model_response=response)
        )
        return action


class Calculator(base_environment.BaseTaskEnv):
    """One episode."""

    def __init__(self, single_example, **kwargs):
        super().__init__(single_example, max_steps=work["turns"], **kwargs)

    def _initial_observation(self):
        return self.task

    def _step_impl(self, action):
        answer = np.asarray(self.task["answer"]).item()
        told, reward, solved = calculator_game.step(action, answer, work["price"])
        counts.add(self.extra_kwargs["group_id"] // batch, solved=solved, calls=told is not None)
        return base_environment.EnvStepResult(told if told else {}, reward, told is None, {})


def problems():
    """One batch per step."""
    for step in range(steps):
        prompts, answers = zip(*work["problems"][step * batch : (step + 1) * batch], strict=True)
        yield {"prompts": np.array(prompts), "answer": np.array(answers)}


config = llama3.ModelConfig(
    num_layers=sizes["num_layers"], vocab_size=len(work["alphabet"]) + 3, embed_dim=sizes["embed_dim"],
    hidden_dim=sizes["mlp_dim"], num_heads=sizes["num_heads"], head_dim=sizes["head_dim"],
    num_kv_heads=sizes["num_kv_heads"], rope_theta=int(sizes["rope_theta"]), norm_eps=sizes["norm_eps"],
    weight_tying=sizes["tied_head"],
)  # fmt: skip
llama3.apply_rope = functools.partial(llama3.apply_rope, rope_theta=config.rope_theta)
mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("fsdp", "tp"))
with mesh:
    actor = llama3_params.create_model_from_safe_tensors(work["model"], config, mesh)
Role = rl_cluster.Role
prompt, turn = work["prompt"], work["turn_tokens"]
cluster = rl_cluster.RLCluster(
    actor=actor, tokenizer=Characters(),
    cluster_config=rl_cluster.ClusterConfig(
        role_to_mesh={Role.ACTOR: mesh, Role.REFERENCE: mesh, Role.ROLLOUT: mesh},
        rollout_engine="vanilla",
        training_config=rl_cluster.RLTrainingConfig(
            actor_optimizer=optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(work["rate"], weight_decay=0.0)),
            eval_every_n_steps=10**9, max_steps=steps, mini_batch_size=batch, train_micro_batch_size=batch,
            compute_logps_micro_batch_size=batch,
        ),
        rollout_config=base_rollout.RolloutConfig(
            max_tokens_to_generate=ROW, max_prompt_length=prompt, kv_cache_size=32 + turn, temperature=1.0, top_p=1.0,
            top_k=None, return_logprobs=True,
        ),
    ),
)  # fmt: skip
algorithm = agentic_grpo_learner.GRPOConfig(
    num_generations=group_size, num_iterations=1, beta=0.0, epsilon=0.2, off_policy_steps=0, max_response_length=ROW,
    max_concurrency=16, advantage_estimator="rloo", loss_agg_mode="token-mean",
)  # fmt: skip
learner = agentic_grpo_learner.GRPOLearner(
    rl_cluster=cluster, algo_config=algorithm, chat_parser=Chat(), agent_class=Agent, env_class=Calculator
)
model_call, update, sample = learner._model_call, cluster.update_actor, cluster.rollout.generate
seeds = itertools.count()


def seeded(prompts, rollout_config, **kwargs):
    """The sampler's call with a seed of its own."""
    seed = jax.random.PRNGKey(work["seed"] * 2**20 + next(seeds))
    return sample(prompts, dataclasses.replace(rollout_config, seed=seed), **kwargs)


def cut_call(chats, env=None, max_generation_steps=None):
    """The model's call for one turn, with a turn's limit."""
    result = model_call(chats, env, max_generation_steps=max(min(turn, max_generation_steps - 1), 1))
    counts.add(env.extra_kwargs["group_id"] // batch, tokens=len(result.tokens[0]))
    return result


def timed_update(*args, **kwargs):
    """update_actor, timed to its end."""
    result = update(*args, **kwargs)
    jax.block_until_ready(jax.tree.leaves(nnx.state(cluster.actor_trainer.model, nnx.Param)))
    counts.updated()
    return result


learner._model_call, cluster.update_actor, cluster.rollout.generate = cut_call, timed_update, seeded
contexts = [(prompt, turn), (16, turn), *((32, n) for n in range(1, turn + 1))]
for length, tokens in contexts:
    cluster.generate(["1" * (length - 1)], max_generation_steps=tokens)
learner.train(problems())
print(json.dumps(counts.result("tunix")))
