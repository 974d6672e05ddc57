"""experiments.control.ppo: two whole updates of a run, from its recorded steps, against control_step.py."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs.control import environments as configs
from experiments.control import ppo as control_ppo
from experiments.parts import control_loop, control_runs
from experiments.parts import run as runs
from rl_jax import envs
from rl_jax.control import update as control_update
from rl_jax.envs.protocol import Box, Discrete, Environment, Step, time_limit
from rl_jax.rollout.envs.steps import Transitions
from rl_jax.runs.logging import read_jsonl
from tests.experiments.small import kept_signals  # noqa: F401
from tests.step_checks import control_step, forward, record_calls

pytestmark = [pytest.mark.usefixtures("kept_signals"), pytest.mark.slow]

SETTINGS = control_step.Settings(updates=2)
TOLERANCE = 1e-4


def walk() -> Environment:
    """A noisy walk: it ends far from the origin, and is cut off after five steps; features of several sizes."""

    def observe(place, time):
        return jnp.stack([3.0 + 2.0 * place, 0.2 * time])

    def reset(key):
        place = jax.random.uniform(key, minval=-1.0, maxval=1.0)
        return (place, jnp.float32(0.0)), observe(place, jnp.float32(0.0))

    def step(key, state, action):
        place = state[0] + 0.8 * (2.0 * action - 1.0) + 0.3 * jax.random.normal(key)
        observation = observe(place, state[1] + 1.0)
        reward = 4.0 * place - jnp.square(place)
        return (place, state[1] + 1.0), Step(observation, reward, jnp.abs(place) > 1.6, jnp.bool_(False))

    space = Box(np.full(2, -9.0, np.float32), np.full(2, 9.0, np.float32))
    return time_limit(Environment(reset, step, space, Discrete(2)), 5)


def config():
    s, found = SETTINGS, configs.get_config("matching")
    found.update(num_seeds=1, log_every=2)
    found.sample.update(num_envs=4, num_steps=12)
    found.network.hidden = (8,)
    found.train.update(total_steps=96, epochs=s.epochs, minibatches=s.minibatches, max_grad_norm=s.max_norm)
    found.train.optimizer.update(learning_rate=s.rate, final_fraction=s.final, b1=s.b1, b2=s.b2, eps=s.eps)
    found.algorithm.update(
        normalize_observations=True, normalize_rewards=True, entropy_coef=s.entropy_coef, kl_coef=s.kl_coef,
        value_coef=s.value_coef, advantage=dict(fn="gae", discount=s.discount, lam=s.lam),
        surrogate=dict(fn="clipped_surrogate", clip_low=s.clip, clip_high=s.clip),
        value_loss=dict(fn="clipped", value_clip=s.value_clip),
    )  # fmt: skip
    found.eval.num_episodes = 0
    found.checkpoint.every = 2
    found.log.update(progress=False, tensorboard=False)
    return found


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    """(params at the start, rollouts, orders, params at the end, the row of metrics)."""
    workdir, rollouts, orders, ends = tmp_path_factory.mktemp("control") / "run", [], [], []
    collect, shuffled, make_program = control_update.collect, control_update.shuffled, control_loop.make_program

    def keep(place, x):
        jax.debug.callback(lambda x: place.append(jax.tree.map(np.array, x)), x, ordered=True)

    def kept_collect(*args, **more):
        worlds, rows, metrics = collect(*args, **more)
        keep(rollouts, rows)
        return worlds, rows, metrics

    def kept_order(*args):
        order = shuffled(*args)
        keep(orders, order)
        return order

    def kept_ends(config, make_run):
        program = make_program(config, make_run)

        def init():
            state = program.init()
            ends.append(record_calls.on_host(program.finals(state)))
            return state

        def advance(state):
            state, metrics = program.advance(state)
            ends.append(record_calls.on_host(program.finals(state)))
            return state, metrics

        return program._replace(init=init, advance=advance)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(control_update, "collect", kept_collect)
        patch.setattr(control_update, "shuffled", kept_order)
        patch.setattr(control_loop, "make_program", kept_ends)
        patch.setattr(control_runs, "load_env", lambda config, count, **more: envs.vectorize(walk(), count))
        patch.setattr(runs.Run, "ahead", record_calls.not_ahead)
        patch.setattr(control_runs, "CPU_OPTIONS", {"xla_backend_optimization_level": 0})
        control_ppo.run(config(), workdir)
    jax.effects_barrier()
    start, end = (jax.tree.map(lambda x: x[0], tree) for tree in ends)
    steps = [dict(zip(Transitions._fields, rows, strict=True)) for rows in rollouts]
    return start, steps, orders, end, read_jsonl(workdir / "metrics.jsonl")[-1]


def test_two_updates_are_those_of_the_equations(case):
    start, rollouts, orders, end, row = case
    assert len(rollouts) == len(orders) == 2
    assert len({epoch.tobytes() for order in orders for epoch in order}) == 4, "each update and epoch has its own order"
    assert len({rows["actions"].tobytes() for rows in rollouts}) == 2
    ended, cut = (np.concatenate([rows[name] for rows in rollouts]) for name in ("terminated", "truncated"))
    assert 2 < ended.sum() < ended.size / 2 and 2 < cut.sum() < cut.size / 2
    (one, two), done = rollouts, ended[:4, -1] | cut[:4, -1]
    went_on = one["next_observations"][:, -1][~done]
    np.testing.assert_array_equal(two["observations"][:, 0][~done], went_on, "episodes go on in the next rollout")
    assert len(went_on)
    params, metrics, outputs = control_step.replay(start, rollouts, orders, SETTINGS)
    for acted, rows in zip(outputs, rollouts, strict=True):  # by the newest params and the moments of before
        np.testing.assert_allclose(rows["outputs"], acted, rtol=1e-3, atol=1e-5)
    assert forward.update_error(start, params, end) < TOLERANCE
    means = {name: np.mean([one[name] for one in metrics]) for name in metrics[0]}
    wrong = forward.metric_errors([means], [row])
    assert max(wrong.values()) < TOLERANCE, wrong


@pytest.mark.parametrize("term", control_step.TERMS, ids=lambda x: x.replace(" ", "_"))
def test_every_term_moves_the_result(case, term):
    start, rollouts, orders, end, _ = case
    params, *_ = control_step.replay(start, rollouts, orders, SETTINGS, term)
    assert forward.update_error(start, params, end) > 5 * TOLERANCE
