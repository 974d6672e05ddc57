"""Policy gradients on a reward that is wrong somewhere, and on a target distribution that the policy cannot be."""

from collections.abc import Mapping, Sequence

import chex
import jax
import jax.numpy as jnp

from experiments.studies.base import Outcome, curve, kl, per_seed, seed_keys
from experiments.studies.policy_world import Layout, Recipe, make_method, make_tracker, rows_of, sample, score, train


def wrong_somewhere(
    seeds: Sequence[int],
    *,
    arms: Mapping[str, Mapping],
    vocab: int,
    length: int,
    prompts: int,
    share: float,
    excess: float,
    noise: float,
    references: int,
    recipe: Mapping,
) -> Outcome:
    """A reward model that overrates few answers by much: what shaping its rewards does to what is learned.

    True rewards are N(0, 1) per completion; the model adds N(0, noise^2), and `excess` to a random share of them whose
    true reward is below 0. The initial policy is the reference. Metrics: reward, the expected true reward at the end,
    and best, the largest at any time; lost, best - reward; hacked, the probability of the overrated completions. All
    are sums over the completions.

    Args:
      seeds: of the rewards and the training.
      arms: name -> slots (see make_method).
      vocab: V.
      length: T.
      prompts: P.
      share: of the completions that are overrated.
      excess: by how much.
      noise: of the model elsewhere.
      references: M, samples of the reference for each row, scored by the model, for shapes that ask for them.
      recipe: fields of Recipe.
    """
    layout = Layout(vocab, length)

    def run(method, key):
        keys = jax.random.split(key, 5)
        count = vocab**length
        logits = jax.random.normal(keys[0], (prompts, layout.contexts, vocab))
        true = jax.random.normal(keys[1], (prompts, count))
        overrated = jax.random.bernoulli(keys[2], 2.0 * share, true.shape) & (true < 0)
        model = true + noise * jax.random.normal(keys[3], true.shape) + excess * overrated

        def reward(key, asked, rollout):
            return model[asked, layout.completion_of(rollout.batch.tokens[:, 1:])]

        def named(key, _, asked):
            rows = jnp.repeat(asked, references)
            scored = reward(key, rows, sample(key, logits, rows, layout))
            return {"reference_rewards": scored.reshape(-1, references)}

        def observe(logits):
            probabilities = jnp.exp(layout.log_probs(logits))
            return jnp.mean(jnp.sum(probabilities * true, 1)), jnp.mean(jnp.sum(probabilities * overrated, 1))

        chosen = Recipe(reward=reward, named=named, ref=logits, **recipe)
        _, (rewards, hacked), _ = train(keys[4], logits, method, chosen, layout, observe)
        best = jnp.max(rewards)
        metrics = {"reward": rewards[-1], "best": best, "lost": best - rewards[-1], "hacked": hacked[-1]}
        return metrics, rewards

    values, curves = {}, {}
    for arm, slots in arms.items():
        method = make_method(slots)
        metrics, trace = jax.jit(jax.vmap(lambda key, m=method: run(m, key)))(seed_keys(seeds))
        values[arm], curves[arm] = per_seed(metrics), curve(range(trace.shape[1]), trace)
    return Outcome(values, {"true_reward": curves})


def log_probs_of_all(logits: chex.Array, layout: Layout) -> chex.Array:
    """log pi of all completions of the first prompt, whatever the policy sees. float [1, N, V] -> float [V^T]."""
    tokens = layout.completions().astype(jnp.int32)
    return jnp.sum(score(logits, rows_of(jnp.zeros(len(tokens), jnp.int32), tokens), layout).log_probs, axis=1)


def divergence_targets(
    seeds: Sequence[int], *, arms: Mapping[str, str], vocab: int, length: int, beta: float, recipe: Mapping
) -> Outcome:
    """f-DPG towards p = ref exp(R / beta) / Z with a policy that cannot be p: each f has another best policy.

    R is N(0, 1) per completion, ref is uniform, and the policy's tokens are independent of each other. Metrics, summed
    over all completions: reward, E_pi[R]; entropy, in nats a completion; covers, KL(p || pi); seeks, KL(pi || p).
    Source: arXiv 2302.08215.

    Args:
      seeds: of the rewards and the samples.
      arms: name -> f of rl_jax.advantages.divergences.
      vocab: V.
      length: T.
      beta: of the target.
      recipe: fields of Recipe.
    """
    layout = Layout(vocab, length, sees="place")
    place = "rl_jax.advantages"

    def run(f, key):
        key_r, key_run = jax.random.split(key)
        rewards, logits = jax.random.normal(key_r, (vocab**length,)), jnp.zeros((1, length, vocab))
        target = jax.nn.log_softmax(rewards / beta)
        slots = dict(advantage=dict(fn=f"{place}.divergences:f_dpg", f=f), surrogate="reinforce", reward_kl="k1")
        memory = dict(fn=f"{place}.memory:partitions", f=f, num_prompts=1, reward_kl_coef=beta)
        chosen = Recipe(
            reward=lambda key, asked, rollout: rewards[layout.completion_of(rollout.batch.tokens[:, 1:])],
            ref=logits,
            reward_kl_coef=beta,
            tracker=make_tracker(memory),
            **recipe,
        )
        method = make_method(slots | dict(aggregate="seq_mean_token_sum"))
        _, trace, _ = train(key_run, logits, method, chosen, layout, lambda x: log_probs_of_all(x, layout))
        found = trace[-1]
        earned = jnp.exp(trace) @ rewards
        metrics = {
            "reward": earned[-1],
            "entropy": -jnp.sum(jnp.exp(found) * found),
            "covers": kl(target, found),
            "seeks": kl(found, target),
        }
        return metrics, earned

    values, curves = {}, {}
    for arm, f in arms.items():
        metrics, earned = jax.jit(jax.vmap(lambda key, f=f: run(f, key)))(seed_keys(seeds))
        every = max(earned.shape[1] // 100, 1)
        values[arm], curves[arm] = per_seed(metrics), curve(range(0, earned.shape[1], every), earned[:, ::every])
    return Outcome(values, {"reward": curves})
