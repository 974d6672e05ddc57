"""reward_model.py: objectives learn a planted reward, micro-batches and padding change nothing, what it refuses."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rl_jax import reward_model
from rl_jax.core.masked import merge
from rl_jax.core.types import PreferenceBatch, TokenBatch, TokenScores
from rl_jax.losses import reward_model as losses
from rl_jax.losses.reward_model import rankings
from rl_jax.losses.value import Support
from rl_jax.training.step import init_state, make_train_step

D, N, SEEDS, STEPS = 5, 64, 3, 60
# The programs are tiny and run for milliseconds: what takes time is LLVM, and it has nothing to gain here.
quick_jit = functools.partial(
    jax.jit, compiler_options={"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}
)
SUPPORT = Support(-4.0, 4.0, 31, 3)
EMPTY = jnp.zeros((1, 1, 1), jnp.int32)
TOKENS = TokenBatch(EMPTY, EMPTY, EMPTY)


def preference_batch(rewards, *, present=None, mask=None, ref_log_probs=None, **extras):
    """Responses of whose tokens nothing is read: the tests give the head's outputs themselves."""
    shape = rewards.shape
    present = jnp.ones(shape, bool) if present is None else present
    mask = jnp.ones((*shape, 1), bool) if mask is None else mask
    return PreferenceBatch(TOKENS, mask, present, jnp.asarray(rewards), ref_log_probs, None, extras)


# --- Learning: the reward is a plane through features; held-out pairs are ordered by it ------------------------------


def planted(key, k):
    """(features [N, k, D], true rewards [N, k] best first) of one batch, a new one at every step."""
    features = jax.random.normal(key, (N, k, D))
    truth = features @ jnp.arange(-2.0, 3.0)[:D] / 3.0
    order = jnp.argsort(-truth, axis=1)
    return jnp.take_along_axis(features, order[:, :, None], axis=1), jnp.take_along_axis(truth, order, axis=1)


def flipped(key, x, share):
    """The two sides of a share of the pairs exchanged."""
    turn = jax.random.bernoulli(key, share, (N,))
    return jnp.where(turn.reshape(-1, *([1] * (x.ndim - 1))), x[:, ::-1], x), turn


def train(objective, make, outputs_of, loss=reward_model.loss):
    """The share of held-out pairs that `outputs_of(params, features)[..., 0]` orders as the plane does, by seed."""
    width = objective.num_outputs() if isinstance(objective, reward_model.Objective) else 2
    step = make_train_step(lambda p, b: loss(outputs_of(p, b[0]), b[1], objective), optax.adam(0.1))

    def run(key):
        params = {"kernel": jnp.zeros((D, width)), "bias": jnp.zeros(width)}
        state = init_state(params, optax.adam(0.1), key)
        state, _ = jax.lax.scan(lambda s, k: step(s, make(k)), state, jax.random.split(key, STEPS))
        features, _ = planted(jax.random.fold_in(key, 7), 2)
        found = outputs_of(state.params, features)
        rewards = (
            objective.rewards(found)[..., 0]
            if width != 2 or loss is reward_model.loss
            else found[..., 1] - found[..., 0]
        )
        return jnp.mean(rewards[:, 0] > rewards[:, 1])

    return np.asarray(quick_jit(jax.vmap(run))(jax.random.split(jax.random.key(0), SEEDS)))


def linear(params, features):
    return features @ params["kernel"] + params["bias"].reshape(1, 1, -1)


def pairs(key, **extras):
    features, truth = planted(key, 2)
    return features, preference_batch(jnp.zeros((N, 2)), **{name: fn(truth, key) for name, fn in extras.items()})


def noisy_soft(key):
    """A fifth of the pairs the wrong way round, and annotators who say so."""
    features, _ = planted(key, 2)
    features, turned = flipped(jax.random.fold_in(key, 1), features, 0.2)
    return features, preference_batch(jnp.zeros((N, 2)), label_probs=jnp.where(turned, 0.1, 0.9))


def several(key):
    """Four responses, of which some are as good as others."""
    features, truth = planted(key, 4)
    return features, preference_batch(jnp.round(truth))


def graded(key, binary=False):
    features, truth = planted(key, 2)
    return features, preference_batch((truth > 0).astype(jnp.float32) if binary else truth)


def multi(key):
    """Two attributes, one of them the reward and one its opposite; a third of the labels is missing."""
    features, truth = planted(key, 2)
    mask = jax.random.bernoulli(key, 0.67, (N, 2, 2))
    targets = jnp.where(mask, jnp.stack([truth, -truth], axis=-1), jnp.nan)
    return features, preference_batch(truth, attribute_targets=targets, attribute_mask=mask)


Choice = reward_model.Objective
# The regularizers stand beside a loss each; Bradley-Terry alone is what each member of the ensemble has.
OBJECTIVES = {
    "margin, squared": (
        Choice(losses.bradley_terry_margin, regularizer=rankings.squared, regularizer_coef=0.005),
        functools.partial(pairs, margins=lambda truth, _: truth[:, 0] - truth[:, 1]),
    ),
    "soft": (Choice(losses.bradley_terry_soft), noisy_soft),
    "k_wise": (Choice(losses.k_wise), several),
    "plackett_luce": (Choice(losses.plackett_luce), several),
    "mse": (Choice(losses.mse), graded),
    "outcome": (Choice(losses.outcome), functools.partial(graded, binary=True)),
    "hl_gauss": (Choice(losses.hl_gauss, support=SUPPORT), graded),
    "attributes": (Choice(losses.attributes, attribute_weights=(1.0, -1.0)), multi),
    "ensemble, centred, smoothed": (
        Choice(functools.partial(losses.bradley_terry, label_smoothing=0.1), regularizer_coef=0.01, members=3),
        pairs,
    ),
}


@pytest.mark.parametrize("name", OBJECTIVES)
def test_it_learns_a_planted_reward(name):
    """0.9 of held-out pairs: a wrong sign would give 0.1, a gradient that does not arrive 0."""
    accuracy = train(*OBJECTIVES[name], linear)
    assert accuracy.min() > 0.9, accuracy


def test_a_process_reward_model_learns():
    def make(key):
        features, truth = planted(key, 3)
        batch = reward_model.StepBatch(
            TOKENS,
            jnp.zeros((N, 3), jnp.int32),
            (truth > 0).astype(jnp.float32),
            jax.random.bernoulli(key, 0.7, (N, 3)),
        )
        return features, batch

    accuracy = train(losses.step_cross_entropy, make, linear, loss=reward_model.steps_loss)
    assert accuracy.min() > 0.9, accuracy


def test_an_implicit_reward_model_learns_which_tokens_are_right():
    """A policy of one table; a response is right where it has more of token 0 than of token 1."""

    def batch_of(key):
        tokens = jax.random.randint(key, (N, 1, 6), 0, 4)
        right = (jnp.sum(tokens == 0, axis=-1) > jnp.sum(tokens == 1, axis=-1)).astype(jnp.float32)
        mask = jnp.ones(tokens.shape, bool)
        return tokens, preference_batch(right, mask=mask, ref_log_probs=jnp.full(tokens.shape, -math.log(4.0)))

    def loss(params, batch):
        log_probs = jax.nn.log_softmax(params)[batch[0]].reshape(-1, 6)
        return reward_model.implicit_loss(TokenScores(log_probs, jnp.zeros_like(log_probs)), batch[1], beta=1.0)

    step = make_train_step(loss, optax.adam(0.05))
    state = init_state(jnp.zeros(4), optax.adam(0.05), jax.random.key(0))
    keys = jax.random.split(jax.random.key(1), 60)
    state, metrics = quick_jit(lambda s: jax.lax.scan(lambda s, k: step(s, batch_of(k)), s, keys))(state)
    table = jax.nn.log_softmax(state.params)
    assert float(table[0]) > float(table[2:].max()) and float(table[1]) < float(table[2:].min()) - 0.3
    assert float(metrics["loss"][0]) == pytest.approx(math.log(2), rel=1e-5)
    assert float(metrics["loss"][-1]) < 0.6


# --- Laws ------------------------------------------------------------------------------------------------------------


def case(objective, k=2, n=8, seed=0):
    rng = np.random.default_rng(seed)
    outputs = jnp.asarray(rng.normal(size=(n, k, objective.num_outputs())), jnp.float32)
    present = np.ones((n, k), bool)
    present[1, -1] = False
    mask = jnp.asarray(np.arange(4) < rng.integers(1, 5, (n, k, 1)))
    return outputs, preference_batch(
        jnp.asarray(rng.random((n, k)), jnp.float32), present=jnp.asarray(present), mask=mask
    )


LAWS = [
    Choice(regularizer_coef=0.1),
    Choice(losses.mse, regularizer_coef=0.1),
    Choice(losses.hl_gauss, support=SUPPORT),
    Choice(members=3),
]


@pytest.mark.parametrize("objective", LAWS, ids=["pairs", "mse", "hl_gauss", "members"])
def test_micro_batches_add_up_and_absent_responses_count_for_nothing(objective):
    outputs, batch = case(objective)

    @quick_jit
    @functools.partial(jax.value_and_grad, has_aux=True)
    def loss(x, present):
        mean, metrics = reward_model.loss(x, batch._replace(present=present), objective)
        return mean.total, (mean, metrics)

    (_, (whole, metrics)), _ = loss(outputs, batch.present)
    rows = jnp.arange(8)[:, None] % 2 == 0
    # A half with the other one absent: nothing of an absent response is read (below), so it is a batch of four.
    halves = [loss(outputs, batch.present & half)[0][1] for half in (rows, ~rows)]
    joined, both = merge(halves[0], halves[1])
    assert float(joined.value()) == pytest.approx(float(whole.value()), rel=1e-5)
    assert float(halves[0][0].count) < float(whole.count)
    for name in metrics:
        assert float(both[name].value()) == pytest.approx(float(metrics[name].value()), rel=1e-4, abs=1e-6), name
    dirty = jnp.where(batch.present[:, :, None], outputs, jnp.nan)
    (found, _), gradient = loss(dirty, batch.present)
    assert float(found) == pytest.approx(float(whole.total), rel=1e-6)
    assert np.isfinite(np.asarray(gradient)).all()
    np.testing.assert_array_equal(np.asarray(gradient)[1, -1], 0.0)


def test_members_are_trained_apart():
    """Each has the loss it would have alone, and the mean over the members is what is divided."""
    outputs, batch = case(Choice(members=3))
    three = quick_jit(lambda x: reward_model.loss(x, batch, Choice(members=3))[0])(outputs)
    one = quick_jit(lambda x: reward_model.loss(x, batch, Choice())[0])
    alone = [one(outputs[..., m : m + 1]) for m in range(3)]
    assert float(three.value()) == pytest.approx(np.mean([float(x.value()) for x in alone]), rel=1e-6)


def test_the_regularizer_stands_beside_the_mean():
    """mean(BT) + c mean((r_w + r_l)^2), as TRL divides it."""
    outputs, batch = case(Choice())
    batch = batch._replace(present=jnp.ones_like(batch.present))
    loss = {c: quick_jit(lambda x, c=c: reward_model.loss(x, batch, Choice(regularizer_coef=c))) for c in (0.0, 0.5)}
    plain = float(loss[0.0](outputs)[0].value())
    both, metrics = loss[0.5](outputs)
    centred = float(jnp.mean(jnp.square(outputs[:, 0, 0] + outputs[:, 1, 0])))
    assert float(both.value()) == pytest.approx(plain + 0.5 * centred, rel=1e-5)
    assert float(metrics["compare"].value()) == pytest.approx(plain, rel=1e-6)
    assert float(metrics["regularizer"].value()) == pytest.approx(centred, rel=1e-5)


@pytest.mark.parametrize("objective", LAWS, ids=["pairs", "mse", "hl_gauss", "members"])
def test_a_further_term_is_added_to_the_mean(objective):
    """Its mean over the prompts, however many terms a prompt's own loss has; of absent prompts nothing is added."""
    outputs, batch = case(objective)
    batch = batch._replace(present=jnp.arange(8)[:, None] < jnp.full((1, batch.present.shape[1]), 6))
    extra = jnp.arange(8.0)
    loss = quick_jit(lambda x, extra: reward_model.loss(x, batch, objective, extra)[0].value())
    plain = quick_jit(lambda x: reward_model.loss(x, batch, objective)[0].value())(outputs)
    assert float(loss(outputs, extra)) == pytest.approx(float(plain) + 2.5, rel=1e-5)


def test_metrics():
    mask = jnp.asarray(np.arange(4) < np.array([[[3], [1]], [[2], [4]]]))
    rewards = jnp.array([[[2.0], [1.0]], [[0.0], [3.0]]])
    found = quick_jit(reward_model.response_metrics)(rewards, preference_batch(jnp.zeros((2, 2)), mask=mask))
    found = {name: float(mean.value()) for name, mean in found.items()}
    assert found["reward/accuracy"] == 0.5 and found["reward/margin"] == -1.0 and found["reward/mean"] == 1.5
    assert found["reward/length_gap"] == pytest.approx((1.0 + 3.0) / 2)  # both longer ones have more
    labels = preference_batch(jnp.array([[1.0], [0.0]]))
    assert float(reward_model.response_metrics(jnp.ones((2, 1, 1)), labels)["reward/accuracy"].value()) == 0.5


def test_metrics_of_a_list_leave_ties_out():
    """The first response is as right as the second one, which has the higher reward, and better than the third."""
    rewards = jnp.array([[[2.0], [5.0], [1.0]]])
    found = quick_jit(reward_model.response_metrics)(rewards, preference_batch(jnp.array([[1.0, 1.0, 0.0]])))
    assert float(found["reward/accuracy"].value()) == float(found["reward/margin"].value()) == 1.0
    assert float(found["reward/margin"].count) == 1.0


@pytest.mark.parametrize(
    ("objective", "threshold"),
    [
        (Choice(losses.outcome), 0.0),
        (Choice(functools.partial(losses.bradley_terry, label_smoothing=0.1)), 0.0),
        (Choice(losses.mse), 0.5),
        (Choice(functools.partial(losses.hl_gauss, sigma_ratio=0.5), support=SUPPORT), 0.5),
        (Choice(losses.attributes, attribute_weights=(1.0,)), 0.5),
    ],
)
def test_a_grade_is_right_above_a_half_and_a_log_odds_above_0(objective, threshold):
    assert objective.is_logit() == (threshold == 0.0)
    if objective.num_outputs() == 1 and objective.loss in (losses.outcome, losses.mse):
        outputs = threshold + jnp.array([[[0.2]], [[-0.2]]])
        _, metrics = reward_model.loss(outputs, preference_batch(jnp.array([[1.0], [0.0]])), objective)
        assert float(metrics["reward/accuracy"].value()) == 1.0


# --- What it refuses -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("objective", "said"),
    [
        (Choice(losses.hl_gauss), "needs the support of its bins"),
        (Choice(support=SUPPORT), "no other loss has a use for one"),
        (Choice(losses.attributes), "needs attribute_weights"),
        (Choice(attribute_weights=(1.0,)), "no other loss has a use for them"),
        (Choice(members=0), "at least one"),
    ],
)
def test_an_objective_that_does_not_fit(objective, said):
    with pytest.raises(ValueError, match=said):
        objective.check()


def test_missing_arrays_are_named():
    outputs, batch = case(Choice())
    with pytest.raises(ValueError, match="bradley_terry_margin needs margins"):
        reward_model.loss(outputs, batch, Choice(losses.bradley_terry_margin))
    scores = TokenScores(jnp.zeros((2, 1)), jnp.zeros((2, 1)))
    with pytest.raises(ValueError, match="ref_log_probs"):
        reward_model.implicit_loss(scores, preference_batch(jnp.zeros((2, 1))))


def test_what_the_head_has_to_give():
    assert (
        Choice(members=3).num_outputs() == 3 and Choice(losses.hl_gauss, support=SUPPORT, members=2).num_outputs() == 62
    )
    assert Choice(losses.attributes, attribute_weights=(1.0, 2.0, 3.0)).num_outputs() == 3
    np.testing.assert_allclose(
        Choice(losses.attributes, attribute_weights=(1.0, 2.0)).rewards(jnp.array([[3.0, 4.0]])), [[11.0]]
    )
