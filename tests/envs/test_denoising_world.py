"""envs/worlds/denoising.py: the score by autodiff, and chains of the exact model that end in the mixture."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax.envs.worlds import denoising
from rl_jax.envs.worlds.denoising import Mixture

RING = denoising.ring()


def log_density(mixture, x, signal, noise):
    spread = signal**2 * mixture.deviation**2 + noise**2
    off = jnp.sum(jnp.square(x[None] - signal * mixture.means), axis=-1)
    return jax.nn.logsumexp(-off / (2 * spread)) - jnp.log(spread)


def test_the_score_is_the_gradient_of_the_noised_density_and_the_predictions_follow_from_it():
    x, signal, noise = jnp.float32([0.7, -0.4]), 0.6, 0.5
    expected = jax.grad(lambda x: log_density(RING, x, signal, noise))(x)
    np.testing.assert_allclose(denoising.score(RING, x, signal, noise), expected, rtol=1e-4)
    noise_mean = denoising.predict("diffusion", RING, x, signal, noise)
    np.testing.assert_allclose(noise_mean, -noise * expected, rtol=1e-4)  # Tweedie
    clean = denoising.clean_mean(RING, x, signal, noise)
    np.testing.assert_allclose(denoising.predict("flow", RING, x, signal, noise), noise_mean - clean, rtol=1e-4)


@pytest.mark.parametrize("process", denoising.PROCESSES)
def test_the_steps_are_those_of_the_papers_samplers(process):
    """DDIM with eta, and Flow-GRPO's SDE, as their code writes them: on x, the prediction and the schedule."""
    x, predicted = 0.3, -0.8
    schedule = denoising.schedule_of(process, 10, 0.7)
    for k in (0, 4, 9):
        now = jax.tree.map(lambda column, k=k: float(column[k]), schedule)
        if process == "flow":
            std, dt = now.std / np.sqrt(now.span), -now.span
            mean = x * (1 + std**2 / (2 * now.time) * dt)
            mean += predicted * (1 + std**2 * (1 - now.time) / (2 * now.time)) * dt
            first = now.time if now.time < 1.0 else float(schedule.time[1])
            assert std == pytest.approx(0.7 * np.sqrt(now.time / (1 - first)), rel=1e-4)
        else:
            t = np.linspace(0.96, 0.03, 11)[k : k + 2]
            alpha, after = np.cos(0.5 * np.pi * t) ** 2
            variance = (1 - after) / (1 - alpha) * (1 - alpha / after)
            assert now.std == pytest.approx(0.7 * np.sqrt(variance), rel=1e-4)
            clean = (x - np.sqrt(1 - alpha) * predicted) / np.sqrt(alpha)
            mean = np.sqrt(after) * clean + np.sqrt(1 - after - now.std**2) * predicted
        assert now.keep * x + now.push * predicted == pytest.approx(mean, rel=1e-4)


@pytest.mark.parametrize(("process", "eta"), [("flow", 0.7), ("diffusion", 1.0)])
def test_chains_without_a_correction_end_in_all_modes(process, eta):
    env = denoising.environment(process=process, steps=20, eta=eta)

    def chain(key):
        state, observation = env.reset(key)
        keys = jax.random.split(jax.random.fold_in(key, 1), 20)
        state, steps = jax.lax.scan(lambda s, k: env.step(k, s, jax.random.normal(k, (2,))), state, keys)
        return state.x, state.direction, steps, observation

    x, direction, steps, first = jax.jit(jax.vmap(chain))(jax.random.split(jax.random.key(0), 2000))
    shares = denoising.mode_shares(x, RING)
    assert np.min(shares) > 0.08 and np.max(shares) < 0.17
    away = np.linalg.norm(np.asarray(x)[:, None] - RING.means, axis=-1).min(1)
    assert np.sqrt(np.mean(away**2) / 2) == pytest.approx(0.2, abs=0.12)
    assert np.all(steps.terminated[:, -1]) and not np.any(steps.terminated[:, :-1])
    np.testing.assert_array_equal(steps.reward[:, :-1], 0.0)
    np.testing.assert_array_equal(steps.reward[:, -1], (x * direction).sum(-1) > 1.2)
    assert (
        env.observation_space.high[8] == 20 and np.all(first[:, 8] == 20) and np.all(steps.observation[:, -1, 8] == 0)
    )


def test_a_convex_combination_of_two_gaussians_scores_is_a_gaussian_of_mixed_precision():
    """At noise level t both scores are linear, so w s_1 + (1 - w) s_2 has the mean weighted by w / variance."""
    first, second = Mixture(np.float32([[1.0, 0.0]]), 0.3), Mixture(np.float32([[-1.0, 2.0]]), 0.6)
    weight, signal, noise = 0.3, 0.8, 0.5
    precisions = [share / (signal**2 * m.deviation**2 + noise**2) for share, m in ((weight, first), (0.7, second))]
    center = sum(p * signal * m.means[0] for p, m in zip(precisions, (first, second), strict=True)) / sum(precisions)
    x = jnp.float32([0.2, -0.9])
    mixed = weight * denoising.score(first, x, signal, noise) + 0.7 * denoising.score(second, x, signal, noise)
    np.testing.assert_allclose(mixed, sum(precisions) * (center - x), rtol=1e-4)


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        (dict(process="ode"), "process='ode' is none of flow, diffusion"),
        (dict(steps=1), "steps=1 must be 2 or more"),
        (dict(reward="best"), "reward='best' is none of half, along, cosine"),
        (dict(modes=0), "modes=0"),
        (dict(jump=11), "jump=11 must be from 0 to steps=10"),
    ],
)
def test_what_is_refused(wrong, match):
    with pytest.raises(ValueError, match=match):
        denoising.environment(**wrong)


@pytest.mark.parametrize("process", denoising.PROCESSES)
def test_a_jump_pays_the_prediction_of_a_late_step_and_stops_gradients_before_it(process):
    env = denoising.environment(process=process, steps=6, reward="cosine", jump=3)
    keys = jax.random.split(jax.random.key(2), 32)
    ends = np.asarray(jax.vmap(lambda key: env.reset(key)[0].end)(keys))
    assert set(ends) == {4, 5, 6}
    chain = env.reset(keys[int(np.argmax(ends == 5))])[0]
    schedule = denoising.schedule_of(process, 6, 0.7)

    def last(actions):
        before, _ = jax.lax.scan(lambda s, a: env.step(keys[0], s, a), chain, actions[:4])
        after, now = env.step(keys[0], before, actions[4])
        return now.reward, (before.x, after.x, now.terminated)

    gradient, (before, after, done) = jax.jit(jax.grad(last, has_aux=True))(jnp.full((5, 2), 0.3))
    assert done and not np.any(gradient[:4]) and np.any(gradient[4])

    def in_a_loop(extra):  # a policy reads what its earlier actions have led to
        state, seen = chain, env.reset(keys[int(np.argmax(ends == 5))])[1]
        for action in extra:
            state, now = env.step(keys[0], state, 0.1 * jnp.tanh(seen[:2]) + action)
            seen = now.observation
        return now.reward

    looped = jax.jit(jax.grad(in_a_loop))(jnp.full((5, 2), 0.3))
    assert not np.any(looped[:4]) and np.any(looped[4])
    now = jax.tree.map(lambda column: column[4], schedule)
    predicted = denoising.predict(process, RING, before, now.signal, now.noise) + now.std / now.push * 0.3
    # x = signal x_0 + noise e, with e the prediction, or the prediction plus x_0.
    noise = predicted + after if process == "flow" else predicted
    np.testing.assert_allclose(now.signal * after + now.noise * noise, before, atol=1e-4)


@pytest.mark.parametrize("process", denoising.PROCESSES)
def test_noised_samples_return_to_themselves_and_the_pretrained_model_predicts_them_best(process):
    """Tweedie: over samples of the mixture, the action has mean 0 whatever is multiplied with it that x_t decides."""
    env, steps, count = denoising.environment(process=process, steps=6), 6, 20_000
    keys = jax.random.split(jax.random.key(3), 3)
    clean = RING.means[jax.random.randint(keys[0], (count,), 0, 8)] + 0.2 * jax.random.normal(keys[1], (count, 2))
    noise, index = jax.random.normal(keys[2], (count, 2)), jnp.arange(count) % steps
    prompts = jnp.tile(jnp.float32([[0.6, 0.8]]), (count, 1))
    seen, actions = jax.jit(jax.vmap(env.noised))(noise, clean, prompts, index)
    now = jax.tree.map(lambda column: column[np.asarray(index)][:, None], denoising.schedule_of(process, steps, 0.7))
    np.testing.assert_allclose(seen[:, :2], now.signal * clean + now.noise * noise, atol=1e-4)
    np.testing.assert_array_equal(seen[:, 2:4], prompts)
    np.testing.assert_allclose(
        seen[:, 5:9],
        np.stack([*(x[:, 0] for x in (now.push / now.std, now.std, now.span)), steps - index], -1),
        rtol=1e-4,
    )
    predict = jax.vmap(lambda x, t: denoising.predict(process, RING, x, *t))
    aim = noise - clean if process == "flow" else noise
    predicted = predict(seen[:, :2], (now.signal[:, 0], now.noise[:, 0]))
    np.testing.assert_allclose(actions / seen[:, 5:6], aim - predicted, atol=2e-3)
    for factor in (jnp.ones_like(aim), jnp.tanh(seen[:, :2])):
        assert np.max(np.abs(np.mean(factor * (aim - predicted), axis=0))) < 0.03
