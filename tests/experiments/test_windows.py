"""rollout.window: an answer over several steps is the answer that one rollout would give, and a run resumes with it."""

import json

import jax
import numpy as np
import pytest

from experiments import ppo
from experiments.parts import policy, windows
from experiments.parts.check_config import check
from experiments.parts.clock import Clock
from experiments.parts.rewards import make_rewards
from experiments.parts.sample_groups import Collector
from experiments.parts.setup import make_setup
from rl_jax.rollout.lm.engine import make_generate
from rl_jax.rollout.lm.sampling import Sampling
from tests.experiments.shared_programs import share_programs, sharing  # noqa: F401  fixtures
from tests.experiments.small import config as small_config
from tests.experiments.small import has_a_seven, kept_signals, no_evaluations, reward  # noqa: F401  a fixture
from tests.experiments.test_ppo import with_critic

LENGTH, WINDOW, ROWS = 4, 2, 8


def config_of(folder, **fields):
    """A small config of experiments.ppo with windows of half an answer."""
    config = with_critic(
        small_config(folder, reward__function=reward(has_a_seven), sample__group_size=1, **fields),
        advantage=dict(fn="rl_jax.advantages.truncated:extended_gae"),
    )
    with config.unlocked():
        config.rollout.window = WINDOW
    return config


@pytest.mark.slow
def test_two_windows_are_one_answer(tmp_path):
    """Greedily and without training: tokens and positions of both windows, log-probs, versions, and who makes room."""
    config = config_of(tmp_path, rollout__top_k=1)
    setup = make_setup(config)
    (programs, state), (_, prompts) = policy.build(setup, setup.init_params()), policy.own_prompts(setup)
    with make_rewards(setup) as pool:
        collect = Collector(setup, pool, prompts, programs)
        first, state_then = collect(state.params, jax.random.key(0), Clock()), json.dumps(prompts.get_state())
        second = collect(state.params, jax.random.key(1), Clock())
        prompts.set_state(json.loads(state_then))
        again = collect(state.params, jax.random.key(1), Clock())
    assert again.judged.completions == second.judged.completions
    np.testing.assert_array_equal(again.judged.rollout.versions, second.judged.rollout.versions)
    over = first.judged.rollout.finished
    goes_on = ~(over | first.judged.rollout.truncated)
    assert first.metrics["window/over"] == over.mean() < 1 and not first.judged.result.rewards[goes_on].any()
    same = [a["id"] == b["id"] for a, b in zip(first.judged.records, second.judged.records, strict=True)]
    np.testing.assert_array_equal(np.array(same)[goes_on], True)
    tokenizer, rollout = setup.task.tokenizer, second.judged.rollout
    width = rollout.batch.tokens.shape[1] - LENGTH
    whole = make_generate(
        setup.model,
        completion_length=LENGTH,
        sampling=Sampling(top_k=1),
        eos_ids=tokenizer.eos_ids,
        pad_id=tokenizer.pad_id,
    )(state.params, rollout.batch.tokens[:, :width], rollout.batch.segment_ids[:, :width] > 0, jax.random.key(2))
    rows = goes_on
    for ours, theirs in zip(rollout.batch[:3], whole.batch[:3], strict=True):
        np.testing.assert_array_equal(ours[rows], np.asarray(theirs)[rows])
    np.testing.assert_array_equal(rollout.completion_mask[rows], np.asarray(whole.completion_mask)[rows])
    lengths = rollout.completion_mask[rows].sum(axis=1)
    expected = [[1] * min(n, WINDOW) + [2] * (n - WINDOW) + [0] * (LENGTH - n) for n in lengths]
    np.testing.assert_array_equal(rollout.versions[rows], expected)
    assert (rollout.finished | rollout.truncated)[rows].all() and (rollout.truncated[rows] <= (lengths == LENGTH)).all()


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("rollout.window", 3, "rollout.window=3 must divide rollout.completion_length=4"),
        ("sample.group_size", 4, "sample.group_size=4 does not go with rollout.window=2: it must be 1"),
        ("packing.mode", "packed", "packing.mode='packed' does not go with rollout.window=2"),
        ("critic.shared", True, "critic.shared=True does not go with rollout.window=2: it must be False"),
        ("program", "grpo", "program='grpo' does not go with rollout.window=2"),
    ],
)
def test_what_does_not_go_with_windows_is_named(tmp_path, name, value, said):
    config = config_of(tmp_path)
    with config.unlocked():
        config.update_from_flattened_dict({name: value})
    with pytest.raises(ValueError, match=said):
        check(config)


def test_a_state_does_not_change_with_what_is_in_flight():
    """What a step writes into its rows is not in a state from before it, nor in one that was set twice."""

    class Prompts:
        get_state, set_state = staticmethod(lambda: {}), staticmethod(lambda state: None)

        def __next__(self):
            return [{"id": 1}, {"id": 2}]

    prompts = windows.InFlight(Prompts())
    next(prompts)
    prompts.rows[1] = None
    state = prompts.get_state()
    told = json.dumps(state)
    prompts.rows[0]["tokens"] = [5]
    assert json.dumps(state) == told
    prompts.set_state(state)
    prompts.rows[0]["tokens"] = [6]
    assert json.dumps(state) == told and prompts.rows[1] is None


def test_a_beginning_stands_behind_its_prompt():
    tokens, mask = np.array([[0, 5, 6], [7, 8, 9]]), np.array([[False, True, True], [True] * 3])
    wide, seen = windows.with_beginnings(tokens, mask, [[1, 2], []], 2, 0)
    np.testing.assert_array_equal(wide, [[0, 5, 6, 1, 2], [0, 0, 7, 8, 9]])
    np.testing.assert_array_equal(seen, wide > 0)


def test_a_state_stays_as_it_was_taken():
    """Also in a step that goes on from it: Windows puts longer lists into the rows."""

    class Prompts:
        def __next__(self):
            return [{"prompt": "a"}, {"prompt": "b"}]

        def get_state(self):
            return {}

        def set_state(self, state):
            pass

    prompts = windows.InFlight(Prompts())
    next(prompts)
    for _ in range(2):
        state = prompts.get_state()
        before = json.dumps(state)
        prompts.rows[0]["tokens"] = prompts.rows[0]["tokens"] + [5]
        assert json.dumps(state) == before
        prompts.set_state(state)


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.slow
@pytest.mark.usefixtures("kept_signals", "no_evaluations")
def test_a_run_goes_on_with_the_answers_in_flight(tmp_path):
    """Its policy and its critic train; after a restart no answer begins anew."""
    config = config_of(tmp_path, train__steps=2, checkpoint__every=1, train__minibatches=2, eval__every=100)
    ppo.run(config, tmp_path / "run")
    with config.unlocked():
        config.train.steps = 3
    (tmp_path / "run" / "final.json").unlink()
    ppo.run(config, tmp_path / "run")
    rows = [row for row in read(tmp_path / "run" / "metrics.jsonl") if row["step"]]
    assert [row["step"] for row in rows] == [1, 2, 3]
    assert all(np.isfinite(row["loss"]) and np.isfinite(row["value/loss"]) for row in rows)
    assert 0 < rows[0]["window/over"] < 1 and rows[0]["window/tokens"] <= WINDOW
    assert rows[2]["window/tokens"] > WINDOW, "a row that was in flight has more than one window now"
