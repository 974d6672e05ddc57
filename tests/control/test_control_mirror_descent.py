"""MDPO (arXiv 2005.09814) as control.ppo runs it: where its loss is smallest, and the weight of its KL."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs.control import environments as configs
from experiments.parts import control_setup
from rl_jax import control, ppo
from rl_jax.core.types import PolicyBatch, StepInputs, TokenScores

OLD = np.array([0.5, 0.25, 0.125, 0.125])  # of one state; eight actions hold it exactly
ADVANTAGES = np.array([-1.0, 0.5, 2.0, -0.5])
UPDATES = 5


@pytest.mark.parametrize("update", [1, 3, UPDATES])
def test_the_optimum_is_the_old_policy_times_the_exponential_of_the_advantages(update):
    """pi = old exp(t_k A) / Z with t_k = 1 - (k - 1) / K, by descent on the loss of experiments.control.ppo."""
    config = configs.get_config("matching,mdpo")
    algorithm = control_setup.make_algorithm(control_setup.settings_of(config), updates=UPDATES)
    algorithm = algorithm._replace(entropy_coef=0.0)
    state = algorithm.kl_control.init()
    for _ in range(update - 1):
        state = algorithm.kl_control.update(state, jnp.float32(0.1), jnp.float32(8.0))
    actions = np.repeat(np.arange(4), (8 * OLD).astype(int))
    old = jnp.log(jnp.asarray(OLD, jnp.float32))[actions][:, None]
    blank = jnp.zeros((8, 1))
    batch = PolicyBatch(
        batch=StepInputs(blank, jnp.asarray(actions)), completion_mask=jnp.ones((8, 1), bool),
        advantages=jnp.asarray(ADVANTAGES, jnp.float32)[actions][:, None], old_log_probs=old,
        behavior_log_probs=old, ref_log_probs=old, extras={"kl_coefs": jnp.full(8, state.coef)},
    )  # fmt: skip

    def loss(logits):
        log_probs = jax.nn.log_softmax(logits)[jnp.asarray(actions)][:, None]
        scores = TokenScores(log_probs, blank)
        mean, _ = control.algorithm.loss(scores, blank[..., None], ppo.PPOBatch(batch, blank, blank), algorithm)
        return mean.value()

    logits = jnp.asarray(np.log(OLD), jnp.float32)
    descend = jax.jit(lambda x: jax.lax.fori_loop(0, 2000, lambda _, x: x - 0.5 * jax.grad(loss)(x), x))
    share = 1 - (update - 1) / UPDATES
    expected = OLD * np.exp(share * ADVANTAGES)
    np.testing.assert_allclose(jax.nn.softmax(descend(logits)), expected / expected.sum(), rtol=2e-3)


def test_the_number_of_updates_is_the_run_s(monkeypatch):
    """The last update of a run has the weight K, the first 1."""
    config = configs.get_config("matching,mdpo")
    from experiments.parts import control_runs

    asked = []
    make = control_setup.make_algorithm
    monkeypatch.setattr(control_runs, "make_algorithm", lambda *args, **more: asked.append(more) or make(*args, **more))
    init, _, _ = control_runs.make_run(config)
    jax.eval_shape(init, jax.random.key(0), {})
    assert {"updates": control_setup.num_updates(config)} in asked
