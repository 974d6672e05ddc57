"""A learning probe: a policy that is a table of logits, trained by a method's own credit, loss and train step.

    learns(my_surrogate)
    learns(grpo.Objective(aggregate=my_mean, kl_coef=0.0), credit=rule.CreditRule(advantage=my_advantage))

The task is to copy the prompt: the completion has to be the prompt's answer and an EOS, so that rows are ragged and a
row that goes on for too long is cut off. A warm start makes the right token the likeliest one: about a fifth of the
samples is right at first, as after an imperfect SFT. What is measured is the exact probability of a right answer, from
the table, so that no luck of the last batch is in it.

The sampler draws from logits that lie a little beside the trainer's (another kernel, another dtype, only larger), and a
batch gets as many updates as the method's config says: what a method has against either is exercised.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from rl_jax import grpo, ppo
from rl_jax.core.types import Rollout, TokenBatch, TokenScores
from rl_jax.credit import rule
from rl_jax.testing import holding
from rl_jax.testing.copy_task import (  # noqa: F401  the probe's task is part of it
    ANSWERS,
    EOS,
    GROUP_SIZE,
    GROUPS,
    LENGTH,
    PROMPTS,
    SAMPLER_NOISE,
    VOCAB,
    WARM,
    Drawn,
    accuracy,
    answers,
    collect,
    collect_drawn,
    draw,
    draw_batches,
    greedy_rewards,
    judge,
    ragged,
    sample,
    score,
    start,
)
from rl_jax.training.step import init_state, make_apply, make_gradient

STEPS = 50
CRITIC_STEPS = 10  # before them, in which a critic learns alone
LEARNING_RATE = 0.05
CRITIC_LEARNING_RATE = 0.1
GAIN = 0.3  # in the probability of a right answer, which starts at .23; methods here gain .5 to .7
# The programs are tiny and run for milliseconds: what takes time is LLVM, and it has nothing to gain here.
QUICK = {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}


class Outcome(NamedTuple):
    """The probability of a right answer, mean over the prompts, before and after. float [seeds] each."""

    before: np.ndarray
    after: np.ndarray

    def gain(self) -> np.ndarray:
        return self.after - self.before


class Training(NamedTuple):
    """How a batch of rollouts is trained on."""

    epochs: int = 1
    minibatches: int = 4  # updates per epoch
    max_grad_norm: float = 1.0
    dynamic_sampling: bool = False  # groups whose rewards are all the same are sampled again


class Memory(NamedTuple):
    """What a method carries from step to step (moving baselines, adaptive coefficients), as pure functions.

    The default carries nothing.
    """

    init: Callable = dict  # () -> state
    see_rewards: Callable = lambda state, rewards: state  # before they are used; rewards: float [B] -> state
    known: Callable = lambda state: {}  # -> what credit may ask for by name
    weigh: Callable = lambda batch, state: batch  # -> PolicyBatch with the coefficients of its regularisers
    observe: Callable = lambda state, rewards, metrics: state  # after the updates -> state


class Probe(NamedTuple):
    """What is trained, and how: the parts that a program builds from its config."""

    policy: grpo.Objective = grpo.Objective(kl_coef=0.0)
    credit: rule.CreditRule = rule.CreditRule()
    training: Training = Training()
    memory: Memory = Memory()
    estimator: ppo.Estimator | None = None  # of a method with a critic, else None
    critic: ppo.Objective | None = None


DEFAULT = Probe()


def learns(
    policy: Callable | grpo.Objective | Probe,
    *,
    credit: rule.CreditRule = DEFAULT.credit,
    training: Training = DEFAULT.training,
    gain: float = GAIN,
    seeds: int = 3,
) -> Outcome:
    """Trains the probe, and asserts that the probability of a right answer rises for every seed.

    Args:
      policy: a surrogate, a grpo.Objective, or a whole Probe.
      credit: rewards -> advantages and weights; unused if `policy` is a Probe.
      training: updates per batch of rollouts; unused if `policy` is a Probe.
      gain: what each seed must gain.
      seeds: policies that are trained, side by side.
    Returns:
      Outcome, with the probability before and after.
    Raises:
      AssertionError: if a seed gains less; it names the function and says what each seed has reached.
    """
    name = "the probe"
    if not isinstance(policy, Probe):
        if not isinstance(policy, grpo.Objective):
            policy = grpo.Objective(surrogate=policy, kl_coef=0.0)
        name = holding.name_of(policy.surrogate)
        policy = Probe(policy, credit, training)
    outcome = train(policy, seeds=seeds)
    if not np.all(outcome.gain() > gain):
        reached = ", ".join(f"{x:.2f}" for x in outcome.after)
        raise AssertionError(
            f"{name} does not learn: the probability of a right answer was {outcome.before[0]:.2f} and is {reached} "
            f"after {STEPS} steps, by seed; each must gain more than {gain}"
        )
    return outcome


def predict(outputs: jax.Array, batch: TokenBatch) -> jax.Array:
    """The critic's forward, from a table [prompts, LENGTH + 1, 2, K] -> [B, LENGTH + 1, K].

    It sees the prompt, the column and whether all that was written so far is right, which is all there is to know.
    """
    prompts, tokens = batch.tokens[:, 0], batch.tokens[:, 1:]
    right = jnp.cumprod(tokens == jnp.asarray(answers()[0])[prompts], axis=1)
    states = jnp.concatenate([jnp.ones_like(right[:, :1]), right], axis=1)
    return outputs[prompts[:, None], jnp.arange(LENGTH + 1)[None, :], states]


class Chance(NamedTuple):
    """The random numbers of one step of training."""

    batches: list[Drawn]
    credit_key: jax.Array
    orders: jax.Array  # int32 [updates, rows of a minibatch]


@functools.partial(jax.jit, static_argnames=("count", "training"))
def chances(key: jax.Array, count: int, training: Training) -> Chance:
    """The random numbers of `count` steps, stacked.

    Apart from the training, so that methods share the program: drawing is half of what there is to compile.
    """
    rows = GROUPS * GROUP_SIZE

    def one(key):
        batch_key, order_key = jax.random.split(key)
        sample_key, credit_key = jax.random.split(batch_key)
        keys = jax.random.split(order_key, training.epochs)
        orders = jnp.stack([jax.random.permutation(k, rows) for k in keys]).reshape(-1, rows // training.minibatches)
        return Chance(draw_batches(sample_key, training.dynamic_sampling), credit_key, orders)

    return jax.vmap(one)(jax.random.split(key, count))


class Seen(NamedTuple):
    """A batch of rollouts, and what the policies and the judge say of it, before it is trained on."""

    rollout: Rollout
    rewards: jax.Array  # float [B]
    components: jax.Array  # float [B, 2]
    scores: TokenScores  # of the policy
    ref_log_probs: jax.Array  # float [B, LENGTH]
    greedy_rewards: jax.Array  # float [B]


def look(logits: jax.Array, reference: jax.Array, batches: list[Drawn]) -> Seen:
    """The rollouts of a step, seen by the policy and by the reference."""
    rollout = collect_drawn(logits, batches)
    greedy = greedy_rewards(logits, rollout.batch.tokens[:, 0])
    ref_log_probs = score(reference, rollout.batch).log_probs
    return Seen(rollout, *judge(rollout), score(logits, rollout.batch), ref_log_probs, greedy)


def assign(probe: Probe, seen: Seen, outputs: jax.Array | None, tracked, key_data: jax.Array):
    """One step's PolicyBatch, or PPOBatch if there is a critic, and the state of the memory.

    outputs: of the critic's head, float [B, LENGTH + 1, K]. tracked: the memory's state before the step.
    """
    rollout, rewards = seen.rollout, seen.rewards
    tracked = probe.memory.see_rewards(tracked, rewards)
    available = probe.memory.known(tracked) | dict(
        group_size=GROUP_SIZE,
        key=jax.random.wrap_key_data(key_data),
        ref_log_probs=seen.ref_log_probs,
        log_probs=seen.scores.log_probs,
        entropy=seen.scores.entropy,
    )
    if probe.critic is None:
        available |= {"greedy_rewards": seen.greedy_rewards, "components": seen.components}
        batch = rule.assign(probe.credit, rollout, rewards, **available)
        return probe.memory.weigh(batch._replace(old_log_probs=seen.scores.log_probs), tracked), tracked
    batch, _ = ppo.assign(probe.credit, probe.estimator, rollout, rewards, probe.critic.values(outputs), **available)
    policy = probe.memory.weigh(batch.policy._replace(old_log_probs=seen.scores.log_probs), tracked)
    return batch._replace(policy=policy), tracked


class Programs(NamedTuple):
    """The compiled parts of a probe that are its own; all have the seeds as a first axis.

    assign: as the function of that name, without the probe.
    gradient: ({name: what the forward returns}, batch) -> {name: (gradient of the loss's total by it, metrics)}.
    """

    assign: Callable
    gradient: Callable


def make_programs(probe: Probe) -> Programs:
    """Compiles nothing yet. To sample, to score and to update are the same programs for all probes."""

    def policy_loss(scores, batch):
        return grpo.loss(scores, batch if probe.critic is None else batch.policy, probe.policy)

    def critic_loss(outputs, batch):
        return ppo.value_loss(outputs, batch, probe.critic)

    losses = {"policy": policy_loss} | ({} if probe.critic is None else {"critic": critic_loss})

    def gradient(outputs, batch):
        found = {name: make_gradient(loss)(outputs[name], batch) for name, loss in losses.items()}
        if probe.memory.observe is not Memory().observe:
            return found
        return {name: (by, {"loss": means["loss"]}) for name, (by, means) in found.items()}

    def assigned(seen, outputs, tracked, key_data):
        return assign(probe, seen, outputs, tracked, key_data)

    return Programs(_side_by_side(assigned), _side_by_side(gradient))


def _side_by_side(function: Callable) -> Callable:
    return jax.jit(jax.vmap(function), compiler_options=QUICK)


OPTIMIZERS = {"policy": optax.adam(LEARNING_RATE), "critic": optax.adam(CRITIC_LEARNING_RATE)}
FORWARDS = {"policy": score, "critic": lambda table, batch: predict(table, batch)[:, :-1]}


def _forward(params: dict, rows: TokenBatch) -> dict:
    return {name: FORWARDS[name](x, rows) for name, x in params.items()}


_look, _predict, _score_all = _side_by_side(look), _side_by_side(predict), _side_by_side(_forward)


@functools.cache
def _make_update(max_grad_norm: float) -> Callable:
    """The rest of a train step, from the gradients by what the forward returns."""

    def update(states, rows, found):
        result = {}
        for name, state in states.items():
            gradient, means = found[name]
            _, pull = jax.vjp(lambda params, name=name: FORWARDS[name](params, rows), state.params)
            result[name] = make_apply(OPTIMIZERS[name], max_grad_norm=max_grad_norm)(state, *pull(gradient), means)
        return result

    return _side_by_side(update)


def train(probe: Probe, *, seeds: int = 3, steps: int = STEPS, programs: Programs | None = None) -> Outcome:
    """Trains `seeds` policies side by side, from the same start.

    Args:
      probe: what is trained.
      seeds: policies.
      steps: of training, after those of the critic alone.
      programs: of the probe, if they were made before.
    """
    programs, update = programs or make_programs(probe), _make_update(probe.training.max_grad_norm)
    params = {"policy": start()}
    if probe.critic is not None:
        params["critic"] = jnp.zeros((len(ANSWERS), LENGTH + 1, 2, probe.critic.num_outputs()))
    warmup = 0 if probe.critic is None else CRITIC_STEPS
    keys, count = jax.random.split(jax.random.key(0), seeds), warmup + steps
    drawn = probe.training._replace(max_grad_norm=1.0)  # draws nothing, and would be another program
    chance = jax.vmap(lambda key: chances(key, count, drawn))(keys)
    chance = jax.tree.map(np.asarray, chance._replace(credit_key=jax.random.key_data(chance.credit_key)))

    def begin(key):
        return {name: init_state(x, OPTIMIZERS[name], key) for name, x in params.items()}, probe.memory.init()

    (states, tracked), each = jax.vmap(begin)(keys), np.arange(seeds)[:, None]
    reference, observe = jnp.broadcast_to(start(), (seeds, *start().shape)), _side_by_side(probe.memory.observe)
    for step in range(count):
        now = jax.tree.map(lambda x, step=step: x[:, step], chance)
        seen = _look(states["policy"].params, reference, now.batches)
        outputs = None if probe.critic is None else _predict(states["critic"].params, seen.rollout.batch)
        batch, tracked = programs.assign(seen, outputs, tracked, now.credit_key)
        batch, seen_metrics = jax.tree.map(np.asarray, batch), []
        for turn in range(now.orders.shape[1]):
            chosen = each, now.orders[:, turn]
            part = jax.tree.map(lambda x, chosen=chosen: x[chosen], batch)
            rows = part.batch if probe.critic is None else part.policy.batch
            found = programs.gradient(_score_all({name: x.params for name, x in states.items()}, rows), part)
            new = update(states, rows, found)
            kept = {"policy": states["policy"]} if step < warmup else {}
            states = {name: state for name, (state, _) in new.items()} | kept
            seen_metrics.append(new["policy"][1])
        if jax.tree.leaves(tracked):
            means = jax.tree.map(lambda *x: np.mean(np.stack(x), axis=0), *seen_metrics)
            tracked = observe(tracked, seen.rewards, means)
    after = np.asarray(jax.vmap(accuracy)(states["policy"].params))
    return Outcome(np.full(seeds, accuracy(start())), after)
