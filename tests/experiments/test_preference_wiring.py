"""The hand-overs of the preference programs that no whole step shows: caches, evaluation, statistics, segments."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs.control import environments, preferences
from configs.preferences import given
from experiments import dpo
from experiments.parts import control_segments, control_setup, preference_steps
from rl_jax.control import segments
from rl_jax.core.masked import Mean
from rl_jax.core.types import PreferenceBatch, TokenBatch
from rl_jax.losses.preference.batch_stats import GlobalBatch
from rl_jax.rollout.envs.steps import Transitions

ROWS = np.ones((2, 2, 7), np.int32)
ARRAYS = dict(tokens=ROWS, positions=ROWS, segment_ids=ROWS, completion_mask=np.ones((2, 2, 3), bool))


def test_the_cache_of_one_reference_is_not_that_of_another(tmp_path):
    """Equal data and settings; only the params differ."""

    def score(params, tokens):
        return SimpleNamespace(log_probs=np.full((len(tokens.tokens), 3), params["w"][0], np.float32))

    config = given.get_config("smoke")
    config.train.batch_size = 2
    for value in (-1.0, -2.0, -1.0):
        found = dpo.with_reference(config, tmp_path, score, {"w": np.full(2, value)}, ARRAYS)
        np.testing.assert_array_equal(found["ref_log_probs"], np.full((2, 2, 3), value))
    assert len(list((tmp_path / "reference").iterdir())) == 2


def test_an_evaluation_is_of_all_its_batches(monkeypatch):
    """Three prompts in batches of two: the mean of 1, 2 and 6, not that of the last batch or of the batches' means."""
    losses = np.array([1.0, 2.0, 6.0])

    def evaluate(params, batch, reference):
        kept = batch.present.any(axis=1)
        chosen = losses[np.asarray(batch.batch.tokens)[:, 0, 0]]
        shape = batch.present.shape
        scored = GlobalBatch(np.zeros(shape), batch.present, np.zeros(shape), np.ones(shape))
        return {"loss": Mean(np.sum(chosen * kept), np.float32(kept.sum()))}, scored

    def batch(arrays, part, size):
        rows, present = np.resize(part, size), np.arange(size) < len(part)
        tokens = TokenBatch(np.tile(rows[:, None, None], (1, 2, 3)), None, None)
        return PreferenceBatch(tokens, None, np.tile(present[:, None], (1, 2)), None)

    for name in ("add_batch_statistics", "to_mesh", "length_correlation"):
        monkeypatch.setattr(dpo, name, {"add_batch_statistics": lambda *args, held_out: (args[2], args[3]),
                                        "to_mesh": lambda setup, rows: rows,
                                        "length_correlation": lambda *args: 0.0}[name])  # fmt: skip
    config = given.get_config("smoke")
    config.eval.batch_size = 2
    setup, programs = SimpleNamespace(config=config), SimpleNamespace(evaluate=evaluate)
    measure = dpo.make_evaluate(setup, programs, SimpleNamespace(batch=batch), {"tokens": np.zeros(3)}, None)
    assert measure(SimpleNamespace(params=None))["eval/loss"] == 3.0


def test_the_statistics_of_a_batch_are_carried_on(monkeypatch):
    """Each update's tracker has seen the update before."""
    config = given.get_config("smoke")
    config.algorithm.batch_stats = dict(fn="bco_anchor")
    monkeypatch.setattr(preference_steps, "to_mesh", lambda setup, rows: rows)
    monkeypatch.setattr(preference_steps.processes, "step_key", lambda state, step: jax.random.key(step))
    keys, flags = [], []

    def batch_stats(tracker, params, batch, mismatched, key, held_out):
        keys.append(jax.random.key_data(key).tolist())
        flags.append(held_out)
        return tracker + 1, {"anchor": np.float32([tracker])}

    programs = SimpleNamespace(batch_stats=batch_stats)
    state = SimpleNamespace(trackers=5, params=None, step=0)
    state._replace = lambda trackers: SimpleNamespace(**(vars(state) | dict(trackers=trackers)))
    batch = PreferenceBatch(None, None, None, None, extras={"lengths": np.float32([2])})
    moved, found = preference_steps.add_batch_statistics(SimpleNamespace(config=config), programs, state, batch, None)
    assert moved.trackers == 6 and {name: float(x[0]) for name, x in found.extras.items()} == dict(lengths=2, anchor=5)
    state.step = 1
    preference_steps.add_batch_statistics(SimpleNamespace(config=config), programs, state, batch, None)
    assert keys[0] != keys[1], "each update has noise of its own"
    for fn in ("bco_anchor", "beta_statistics"):
        config.algorithm.batch_stats = dict(fn=fn)
        preference_steps.add_batch_statistics(SimpleNamespace(config=config), programs, state, batch, None, True)
    assert flags == [False, False, True, False], "beta-DPO has no statistics of its own for held-out batches"


def test_runs_are_seed_by_seed():
    """A run's key is its seed's, and its values are its own."""
    config = environments.get_config("matching")
    config.num_seeds, config.sweep = 2, (("algorithm.entropy_coef", (0.1, 0.2, 0.3)),)
    keys, values = control_setup.runs_of(config)
    found = jax.random.key_data(keys)
    expected = jax.random.key_data(jax.random.split(jax.random.key(config.seed), 2))
    np.testing.assert_array_equal(found, np.repeat(expected, 3, axis=0))
    np.testing.assert_allclose(values["algorithm.entropy_coef"], [0.1, 0.2, 0.3] * 2, rtol=1e-6)


# --- Segments for control.preferences ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def gathered():
    """(what gather returns, the scores and keys that pairs were drawn from, how the teacher behaves) of made-up steps.

    Three rows of eight steps in segments of four; the second step of each segment is cut off by a limit in row 0, and
    ends its episode in row 1.
    """
    config = preferences.get_config("reward,corridor,smoke")
    config.network.hidden = (4,)
    config.segments.update(num_envs=3, num_steps=8, length=4, num_pairs=6, held_out=5)
    config.segments.label.discount = 0.5
    ended, cut = np.zeros((2, 3, 8), bool)
    ended[1, 1::4], cut[0, 1::4] = True, True
    drawn, acted, pairs = [], [], segments.labelled_pairs

    def collect(policy, distribution, env, began, key, *, num_steps):
        outputs = policy(SimpleNamespace(observation=began.observation, memory=()))[0]
        acted.append((began.observation, outputs))
        observations = jnp.zeros((3, 8, *began.observation.shape[1:]))
        blank = jnp.zeros((3, 8))
        rewards = 1.0 + jnp.arange(24.0).reshape(3, 8)
        rows = Transitions(observations, observations, blank, blank.astype(jnp.int32), rewards, ended, cut)
        return began, rows, {}

    def kept(key, scores, **more):
        drawn.append((jax.random.key_data(key), scores, more))
        return pairs(key, scores, **more)

    setup, key = control_segments.make_agent_setup(config), jax.random.key(3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(control_segments, "collect", collect)
        patch.setattr(control_segments.segments, "labelled_pairs", kept)
        return control_segments.make_gather(config, setup)(key, {}), drawn, (setup.agent, key, *acted[0])


@pytest.mark.slow
def test_a_segment_ends_with_its_episode_and_its_rewards_are_discounted(gathered):
    (train, held_out), ((_, scores, _), *_), _ = gathered
    masks = np.array([[True, True, False, False]] * 4 + [[True] * 4] * 2)
    np.testing.assert_array_equal(train.mask, masks)
    rewards = 1.0 + np.arange(24.0).reshape(6, 4)
    np.testing.assert_allclose(scores, (rewards * masks) @ 0.5 ** np.arange(4), rtol=1e-6)
    np.testing.assert_array_equal(held_out.mask, train.mask)


@pytest.mark.slow
def test_held_out_pairs_are_drawn_for_themselves(gathered):
    (train, held_out), ((first, scores, one), (second, others, two)), _ = gathered
    assert (one["count"], two["count"]) == (6, 5) == (len(train.pairs), len(held_out.pairs))
    assert one | {"count": 0} == two | {"count": 0}
    assert not np.array_equal(first, second)
    np.testing.assert_array_equal(scores, others)


@pytest.mark.slow
def test_the_first_env_is_the_teacher_s_and_the_last_an_untrained_policy_s(gathered):
    _, _, (agent, key, observations, outputs) = gathered
    teacher, untrained = (agent.policy(agent.init(k), observations) for k in jax.random.split(key, 6)[:2])
    np.testing.assert_allclose(outputs[0], teacher[0], rtol=1e-6)
    np.testing.assert_allclose(outputs[-1], untrained[-1], rtol=1e-6)
    np.testing.assert_allclose(outputs[1], (teacher[1] + untrained[1]) / 2, rtol=1e-5)
