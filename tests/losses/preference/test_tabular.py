"""Exact oracles in float64: policies over a few actions, every expectation a sum over all of them.

A batch holds every ordered pair of actions, weighted by how likely it is; a gradient is in the policy's logits.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rl_jax import dpo
from rl_jax.core.types import PreferenceBatch, TokenScores
from rl_jax.losses.preference import compare, links, offsets, prompt_weights, regularizers
from rl_jax.selection.candidate_values import win_rates
from rl_jax.selection.extragradient import extragradient_step
from tests.numpy_loops import games as reference
from tests.numpy_loops.lists import numeric_gradient

ACTIONS = 4
PAIRS = np.array([(i, j) for i in range(ACTIONS) for j in range(ACTIONS)])
SQUARE = functools.partial(links.square, target=0.0)


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def _game(seed=0):
    """P [A, A] with P + P' = 1 and no order of the actions behind it, a reference and another policy."""
    rng = np.random.default_rng(seed)
    upper = np.triu(rng.uniform(0.05, 0.95, (ACTIONS, ACTIONS)), 1)
    preferences = upper + np.tril(1 - upper.T, -1) + 0.5 * np.eye(ACTIONS)
    return preferences, reference.policy(rng.normal(size=ACTIONS)), reference.policy(rng.normal(size=ACTIONS))


def _loss(objective, logits, probabilities, ref, prev=None, rewards=None, extras=None, pairs=PAIRS):
    """E of rl_jax.dpo.loss over `pairs` of single-token responses, the first one chosen, with these probabilities."""

    def tokens(log_policy):
        return jnp.asarray(log_policy)[pairs][:, :, None]

    refs, prevs = (None if policy is None else tokens(jnp.log(policy)) for policy in (ref, prev))
    shape = (*pairs.shape, 1)
    rewards = np.zeros(pairs.shape) if rewards is None else jnp.asarray(rewards)[pairs]
    extras = {"prompt_weights": len(pairs) * jnp.asarray(probabilities)} | (extras or {})
    batch = PreferenceBatch(None, np.ones(shape, bool), np.ones(pairs.shape, bool), rewards, refs, prevs, extras)
    log_probs = tokens(jax.nn.log_softmax(logits)).reshape(-1, 1)
    objective = objective._replace(weight=prompt_weights.given)
    return dpo.loss(TokenScores(log_probs, jnp.zeros_like(log_probs)), batch, objective)[0].value()


def _gradient(objective, logits, *args, **more):
    program = _program(objective._replace(reference=tuple(objective.reference.items())))
    gradient = program(jnp.asarray(logits), *args, **more)
    assert gradient.dtype == np.float64
    return np.asarray(gradient)


@functools.cache
def _program(objective):
    """The gradient in the logits, compiled once for a method. objective: its reference as a tuple of pairs."""
    objective = objective._replace(reference=dict(objective.reference))
    return jax.jit(jax.grad(lambda logits, *args, **more: _loss(objective, logits, *args, **more)))


def _product(first, second):
    return first[PAIRS[:, 0]] * second[PAIRS[:, 1]]


# --- Offline ---------------------------------------------------------------------------------------------------------


def test_did_power_law():
    """Winners of pi_w, losers of pi_l independently: DPO rests at pi* where pi_w / pi_l goes as (pi* / ref)^beta."""
    _, ref, target = _game()
    chosen, beta = reference.policy([0.3, -0.2, 0.9, 0.1]), 0.7
    rejected = reference.policy(np.log(chosen) + beta * np.log(ref / target))
    objective = dpo.Objective(beta=beta)
    logits = np.log(target)
    np.testing.assert_allclose(_gradient(objective, logits, _product(chosen, rejected), ref), 0.0, atol=1e-14)
    uniform = np.full(ACTIONS, 1 / ACTIONS)
    assert np.max(np.abs(_gradient(objective, logits, _product(chosen, uniform), ref))) > 1e-2


def test_bradley_terry_labels_make_the_tilted_reference():
    """DPO's population gradient is 0 at pi = ref exp(r / beta), for any pairs; and elsewhere it is not."""
    _, ref, _ = _game()
    rewards, beta = np.array([0.5, -1.0, 0.2, 1.1]), 0.3
    wins = 1 / (1 + np.exp(rewards[PAIRS[:, 1]] - rewards[PAIRS[:, 0]]))
    probabilities = _product(ref, ref) * wins
    optimum = np.log(ref) + rewards / beta
    np.testing.assert_allclose(_gradient(dpo.Objective(beta=beta), optimum, probabilities, ref), 0.0, atol=1e-15)
    assert np.max(np.abs(_gradient(dpo.Objective(beta=beta), np.log(ref), probabilities, ref))) > 1e-3


def test_copg_rests_at_the_regularised_optimum_off_policy():
    """ref exp(R / beta), whoever drew the two responses."""
    _, ref, sampler = _game(8)
    rewards, beta = np.array([0.5, -1.0, 0.2, 1.1]), 0.3
    objective = dpo.Objective(beta=beta, compare=compare.contrastive_policy_gradient)
    probabilities = _product(sampler, ref)
    optimum = np.log(ref) + rewards / beta
    at_optimum = _gradient(objective, optimum, probabilities, ref, rewards=rewards)
    np.testing.assert_allclose(at_optimum, 0.0, atol=1e-15)
    assert np.max(np.abs(_gradient(objective, np.log(ref), probabilities, ref, rewards=rewards))) > 1e-2


def test_copg_is_ipo_with_the_reward_gap_as_target():
    """-(r_i - r_j)(a_i - a_j) and beta / 2 (a_i - a_j - (R_i - R_j) / beta)^2 differ by a constant."""
    _, ref, sampler = _game(9)
    rewards, beta, logits = np.array([0.5, -1.0, 0.2, 1.1]), 0.3, np.array([0.1, 0.4, -0.3, 0.2])
    probabilities = _product(sampler, sampler)
    copg = dpo.Objective(beta=beta, compare=compare.contrastive_policy_gradient)
    square = dpo.Objective(beta=1.0, link=SQUARE, offset=functools.partial(offsets.reward_gap, eta=1 / beta))
    gradients = [_gradient(o, logits, probabilities, ref, rewards=rewards) for o in (copg, square)]
    np.testing.assert_allclose(gradients[0], beta / 2 * gradients[1], atol=1e-15)


def test_hypo_surrogate_has_the_gradient_of_the_kl():
    _, ref, policy = _game()

    def surrogate(logits):
        log_probs = jax.nn.log_softmax(logits)[:, None, None]
        everyone = np.ones((ACTIONS, 1), bool)
        terms = regularizers.online_kl(
            log_probs, everyone[..., None], log_ratios=log_probs - np.log(ref)[:, None, None], sampled=everyone
        )
        return jnp.sum(jax.lax.stop_gradient(jax.nn.softmax(logits)) * terms)

    def kl(logits):
        return jnp.sum(jax.nn.softmax(logits) * (jax.nn.log_softmax(logits) - np.log(ref)))

    logits = jnp.asarray(np.log(policy))
    np.testing.assert_allclose(jax.jit(jax.grad(surrogate))(logits), jax.jit(jax.grad(kl))(logits), atol=1e-15)


# --- Self-play -------------------------------------------------------------------------------------------------------

TAU, ETA = 0.2, 0.6
INPO = dpo.Objective(
    beta=1.0,
    reference={"ref": TAU / ETA, "prev": 1 - TAU / ETA},
    link=functools.partial(links.square, target=1 / (2 * ETA)),
)


def _inpo_gradient(preferences, logits, ref, prev):
    """Two responses drawn from prev, in either order, and the winner by one draw of the preference."""
    return _gradient(INPO, logits, 2 * _product(prev, prev) * preferences[PAIRS[:, 0], PAIRS[:, 1]], ref, prev)


def test_inpo_closed_form_and_fixed_point():
    preferences, ref, prev = _game()
    step = (1 - TAU / ETA) * np.log(prev) + TAU / ETA * np.log(ref) + preferences @ prev / ETA
    np.testing.assert_allclose(_inpo_gradient(preferences, step, ref, prev), 0.0, atol=1e-15)
    assert np.max(np.abs(_inpo_gradient(preferences, np.log(prev), ref, prev))) > 1e-3
    nash = _nash(preferences, ref, TAU)
    np.testing.assert_allclose(_inpo_gradient(preferences, np.log(nash), ref, nash), 0.0, atol=1e-15)
    np.testing.assert_allclose(reference.duality_gap(preferences, np.log(nash), ref, TAU), 0.0, atol=1e-14)


def _nash(preferences, ref, tau):
    """pi = ref exp(P(. > pi) / tau), iterated with small steps."""
    nash = ref
    for _ in range(3000):
        nash = reference.policy(0.9 * np.log(nash) + 0.1 * (np.log(ref) + preferences @ nash / tau))
    return nash


def test_inpo_losses_have_one_gradient():
    """Binary labels and the regression onto (P(y > pi_t) - P(y' > pi_t)) / eta differ by a constant."""
    preferences, ref, prev = _game(1)
    logits = np.array([0.3, -0.4, 1.0, 0.0])
    regression = INPO._replace(link=SQUARE, offset=functools.partial(offsets.reward_gap, eta=1 / ETA))
    rewards = preferences @ prev
    other = _gradient(regression, logits, _product(prev, prev), ref, prev, rewards)
    gradient = _inpo_gradient(preferences, logits, ref, prev)
    np.testing.assert_allclose(gradient, other, atol=1e-15)
    assert np.max(np.abs(gradient)) > 1e-2


def test_dno_soft_labels_step_to_the_tilted_policy():
    """pi_{t+1} = pi_t exp(r_t / eta), r_t = P(. > pi_t), is where the soft-label logistic has no gradient."""
    preferences, _, prev = _game(2)
    rewards, eta = preferences @ prev, 0.25
    labels = 1 / (1 + np.exp(rewards[PAIRS[:, 1]] - rewards[PAIRS[:, 0]]))
    objective = dpo.Objective(beta=eta, reference={"prev": 1.0}, link=links.soft_label)
    more = {"prev": prev, "extras": {"label_probs": labels}}
    step = np.log(prev) + rewards / eta
    np.testing.assert_allclose(_gradient(objective, step, _product(prev, prev), None, **more), 0.0, atol=1e-15)
    assert np.max(np.abs(_gradient(objective, np.log(prev), _product(prev, prev), None, **more))) > 1e-3


def test_spin_rests_at_the_data():
    """Chosen from the data, rejected from pi_t, which is the reference: no gradient where pi_t is the data."""
    _, data, other = _game(3)
    objective = dpo.Objective(beta=0.4, reference={"prev": 1.0})
    at_data = _gradient(objective, np.log(data), _product(data, data), None, data)
    np.testing.assert_allclose(at_data, 0.0, atol=1e-16)
    assert np.max(np.abs(_gradient(objective, np.log(other), _product(data, other), None, other))) > 1e-2


def test_sppo_minimiser():
    """a_y = (P_y - 1/2) / beta for every response at once, whatever the policy drew."""
    preferences, prev, _ = _game(4)
    rates, beta = preferences @ prev, 0.01
    objective = dpo.Objective(beta=beta, compare=compare.win_rates, reference={"prev": 1.0})

    def loss(log_probs):  # not normalised: the minimum is one of free numbers
        log_probs = log_probs[PAIRS].reshape(-1, 1)
        shape = (*PAIRS.shape, 1)
        extras = {"prompt_weights": np.ones(len(PAIRS))}
        tokens = jnp.log(prev)[PAIRS][..., None]
        everyone = np.ones(PAIRS.shape, bool)
        batch = PreferenceBatch(None, np.ones(shape, bool), everyone, rates[PAIRS], None, tokens, extras)
        return dpo.loss(TokenScores(log_probs, jnp.zeros_like(log_probs)), batch, objective)[0].value()

    value, gradient = jax.jit(jax.value_and_grad(loss))(jnp.asarray(np.log(prev) + (rates - 0.5) / beta))
    np.testing.assert_allclose([value, *gradient], 0.0, atol=1e-11)
    assert jax.jit(loss)(jnp.log(prev)) > 1.0


def test_spo_rewards_are_ranks_under_an_order_and_flat_under_a_cycle():
    """With 0/1 labels of a total order R_i = (rank - 1) / (K - 1); in rock-paper-scissors nobody stands out."""
    order = np.array([2, 0, 3, 1])
    labels = np.where(order[:, None] > order, 1.0, 0.0) + 0.5 * np.eye(4)
    np.testing.assert_allclose(win_rates(labels[None], with_self=False)[0], order / 3)
    cycle = np.array([[0.5, 1.0, 0.0], [0.0, 0.5, 1.0], [1.0, 0.0, 0.5]])
    np.testing.assert_allclose(win_rates(cycle[None], with_self=False)[0], 0.5)


# --- Policy gradients ------------------------------------------------------------------------------------------------


def _sampled_gradient(compared, logits, ref, rewards, beta, **extras):
    """sum_y pi(y) grad of the comparator's loss of y alone, single tokens."""

    def loss(logits):
        log_probs = jax.nn.log_softmax(logits)[:, None]
        everyone = np.ones((ACTIONS, 1), bool)
        refs = np.log(ref)[:, None, None]
        more = {name: np.full(ACTIONS, x) for name, x in extras.items()}
        more["prompt_weights"] = ACTIONS * jax.lax.stop_gradient(jax.nn.softmax(logits))
        batch = PreferenceBatch(None, everyone[..., None], everyone, rewards[:, None], refs, None, more)
        objective = dpo.Objective(beta=beta, compare=compared, weight=prompt_weights.given)
        return dpo.loss(TokenScores(log_probs, jnp.zeros_like(log_probs)), batch, objective)[0].value()

    return np.asarray(jax.jit(jax.grad(loss))(jnp.asarray(logits)))


@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
def test_nash_md_by_enumeration(alpha):
    """The gradient of P(pi > pi_mix) - beta KL(pi || ref), pi_mix held; 0 at the best response to it."""
    preferences, ref, policy = _game(5)
    beta = 0.3

    def mixture(logits):
        return reference.policy((1 - alpha) * np.log(reference.policy(logits)) + alpha * np.log(ref))

    def gradient(logits):
        return _sampled_gradient(compare.nash_md, logits, ref, preferences @ mixture(logits), beta)

    logits = np.log(policy)
    opponent = mixture(logits)

    def objective(x):
        pi = reference.policy(x)
        return -(pi @ preferences @ opponent - beta * np.sum(pi * np.log(pi / ref)))

    np.testing.assert_allclose(gradient(logits), numeric_gradient(objective, logits), atol=1e-9)
    if alpha == 1.0:  # the opponent is the reference, once and for all
        rest = reference.best_response(preferences, ref, ref, beta)
    elif alpha == 0.0:  # self-play rests at the Nash policy of the regularised game
        rest = _nash(preferences, ref, beta)
    else:
        return
    np.testing.assert_allclose(gradient(np.log(rest)), 0.0, atol=1e-15)


def test_nash_md_of_two_tokens():
    """Responses of two binary tokens: the sequence form has the gradient of the objective, TRL's token form has not."""
    rng = np.random.default_rng(6)
    answers = np.array([(0, 0), (0, 1), (1, 0), (1, 1)])
    rates, beta = rng.random(4), 0.5
    refs = _two_tokens(rng.normal(size=(3, 2)), answers)
    logits = jnp.asarray(rng.normal(size=(3, 2)))

    def objective(logits):
        log_probs = jnp.sum(_two_tokens(logits, answers), axis=1)
        return -jnp.sum(jnp.exp(log_probs) * (rates - beta * (log_probs - refs.sum(axis=1))))

    def sampled(logits, kl_granularity):
        log_probs = _two_tokens(logits, answers)
        everyone = np.ones((4, 1), bool)
        probabilities = 4 * jax.lax.stop_gradient(jnp.exp(jnp.sum(log_probs, axis=1)))
        compared = functools.partial(compare.nash_md, kl_granularity=kl_granularity)
        objective = dpo.Objective(beta=beta, compare=compared, weight=prompt_weights.given)
        mask = np.ones((4, 1, 2), bool)
        extras = {"prompt_weights": probabilities}
        batch = PreferenceBatch(None, mask, everyone, rates[:, None], refs[:, None], None, extras)
        return dpo.loss(TokenScores(log_probs, jnp.zeros_like(log_probs)), batch, objective)[0].value()

    exact = jax.jit(jax.grad(objective))(logits)
    gradients = [
        jax.jit(jax.grad(functools.partial(sampled, kl_granularity=kl)))(logits) for kl in ("sequence", "token")
    ]
    np.testing.assert_allclose(gradients[0], exact, atol=1e-15)
    assert np.max(np.abs(gradients[1] - exact)) > 1e-2


def _two_tokens(logits, answers):
    """Log-probs [4, 2] of the answers: logits [0] of the first token, [1 + first] of the second."""
    log_probs = jax.nn.log_softmax(jnp.asarray(logits))
    return jnp.stack([log_probs[0, answers[:, 0]], log_probs[1 + answers[:, 0], answers[:, 1]]], axis=1)


# --- Games -----------------------------------------------------------------------------------------------------------

CYCLE = np.array([[0.5, 0.9, 0.2], [0.1, 0.5, 0.7], [0.8, 0.3, 0.5]])
GAME_BETA = 0.02


def _online_ipo(params, opponent):
    """The gradient of EGPO's loss at params: uniform pairs, regressed onto the difference of their wins over it."""
    pairs = np.array([(i, j) for i in range(3) for j in range(3)])
    objective = dpo.Objective(beta=1.0, link=SQUARE, offset=functools.partial(offsets.reward_gap, eta=1 / GAME_BETA))
    wins = CYCLE @ jax.nn.softmax(opponent)
    ref = np.full(3, 1 / 3)
    uniform = np.full(9, 1 / 9)
    return jax.grad(lambda x: _loss(objective, x, uniform, ref, rewards=wins, pairs=pairs))(params)


def _play(method, steps, natural_step):
    """The duality gap after so many steps. The loss's gradient is 4 / 3 of the natural one over beta."""
    optimizer = optax.sgd(natural_step * GAME_BETA * 3 / 4)

    def egpo(params, state):
        return extragradient_step(_online_ipo, optimizer, params, state)

    def against(opponent_of):
        def step(params, state):
            updates, state = optimizer.update(_online_ipo(params, opponent_of(params)), state, params)
            return optax.apply_updates(params, updates), state

        return step

    shares = natural_step * GAME_BETA  # of the uniform reference in Nash-MD's opponent
    step = {"egpo": egpo, "self_play": against(lambda x: x), "nash_md": against(lambda x: (1 - shares) * x)}[method]
    start = jnp.array([1.0, -0.5, 0.3])
    run = jax.jit(lambda x: jax.lax.scan(lambda c, _: (step(*c), None), (x, optimizer.init(x)), length=steps)[0][0])
    return reference.duality_gap(CYCLE, np.asarray(run(start)), np.full(3, 1 / 3), GAME_BETA)


def test_extragradient_converges_where_nash_md_does_not():
    """1000 steps of one size on a cyclic game: the last iterate of EGPO is the Nash policy, the others' is not."""
    gaps = {method: _play(method, 1000, 2.0) for method in ("egpo", "self_play", "nash_md")}
    assert abs(gaps["egpo"]) < 1e-12
    assert gaps["nash_md"] > 1e-2 and gaps["self_play"] > 1e-2, gaps


def test_extragradient_keeps_the_optimizer_of_the_start():
    """The trial step leaves no trace in the momentum, and the second gradient is taken at the start."""
    optimizer = optax.adam(0.1)
    params, seen = jnp.array([1.0, -2.0]), []

    def gradient(at, opponent):
        seen.append((at, opponent))
        return at + 3.0 * opponent

    state = optimizer.init(params)
    found, found_state = extragradient_step(gradient, optimizer, params, state)
    half = optax.apply_updates(params, optimizer.update(4.0 * params, state, params)[0])
    updates, expected_state = optimizer.update(params + 3.0 * half, state, params)
    np.testing.assert_allclose(found, optax.apply_updates(params, updates), rtol=1e-12)
    jax.tree.map(np.testing.assert_array_equal, found_state, expected_state)
    np.testing.assert_array_equal(jnp.stack([at for at, _ in seen]), jnp.stack([params, params]))
