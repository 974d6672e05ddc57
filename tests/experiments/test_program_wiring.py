"""The hand-overs of the other programs that no whole step shows, each with stand-ins for what is beside it."""

import contextlib
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

import jax.numpy as jnp
import numpy as np
import pytest

from configs.preferences import best_of_n as best_configs
from configs.preferences import given, reward_models
from configs.tasks import arithmetic
from experiments import best_of_n, dpo, evaluate, online_dpo, reward_model
from experiments.parts import judging, reward_readers, warm_start
from experiments.parts.judging import Judged
from experiments.parts.rewards import TASK
from rl_jax.core.types import PreferenceBatch, TokenBatch
from rl_jax.rewards.pool import RewardResult
from rl_jax.tokenizers import CharTokenizer


class State(NamedTuple):
    """As much of a TrainState as a loop hands on."""

    params: Any = None
    trackers: int = 0


@pytest.fixture
def dpo_run(monkeypatch, tmp_path):
    """(arrays that were evaluated, the states that two train steps saw) of experiments.dpo's loop."""
    loop, states, evaluated = mock.MagicMock(), [], []
    step = mock.MagicMock(evaluates=True)
    step.clock.totals.return_value = {}
    loop.steps.return_value = [step, step]
    loop.restore = lambda items, batches: items
    programs = mock.MagicMock()

    def train_step(state, batch, reference):
        states.append(state.trackers)
        return state._replace(trackers=state.trackers + 10), {}

    programs.train_step = train_step
    programs.compile_count.return_value = 0
    arrays, held_out = {"tokens": np.zeros(64)}, {"tokens": np.zeros(2)}
    stand_ins = dict(
        Run=lambda *args: loop, preferences=mock.MagicMock(), for_sft=lambda setup, pairs: setup,
        make_setup=mock.MagicMock(), check_batches=lambda setup: None, Encoder=mock.MagicMock(),
        PreferencePacker=mock.MagicMock(), read=lambda *args: (arrays, held_out, {}), warm_start=lambda *args: {},
        needs_reference=lambda config: False, build=lambda *args: (programs, State({})),
        with_degree_head=lambda setup, params: params,
        checkpoint_items=lambda state: state, state_of=lambda items: items, compile_ahead=lambda *args: None,
        add_batch_statistics=lambda *args: (args[2]._replace(trackers=args[2].trackers + 1), args[3]),
        to_mesh=lambda setup, batch: batch,
        make_evaluate=lambda *args: evaluated.append(args[3]) or (lambda state: {}),
    )  # fmt: skip
    for name, stand_in in stand_ins.items():
        monkeypatch.setattr(dpo, name, stand_in)
    dpo.run(given.get_config("smoke"), tmp_path)
    return evaluated, held_out, states


def test_dpo_is_evaluated_on_the_held_out_records(dpo_run):
    evaluated, held_out, _ = dpo_run
    assert len(evaluated) == 1 and evaluated[0] is held_out


def test_dpo_carries_the_statistics_of_its_batches(dpo_run):
    assert dpo_run[2] == [1, 12], "each update sees what the one before has left"


def test_the_trial_step_is_sampled_from_and_forgotten(monkeypatch):
    config = SimpleNamespace(algorithm=SimpleNamespace(extragradient=True))

    def update(loop, setup, programs, state, batch, ref, key):
        state.params["w"].delete()  # as donated buffers are
        return State({"w": "after the trial"}), []

    monkeypatch.setattr(online_dpo, "prepare", lambda *args: None)
    monkeypatch.setattr(online_dpo, "update", update)
    state = State({"w": jnp.ones(3)})
    learned = []

    def draw(policy, reference, key, clock, *, learn):
        learned.append((key, learn))
        return None, None

    setup = SimpleNamespace(config=config)
    found = online_dpo.look_ahead(None, setup, None, draw, state, {}, range(5), None)
    assert found == {"w": "after the trial"} and not state.params["w"].is_deleted()
    assert learned == [(3, False)], "with samples of its own, which teach no judge"
    config.algorithm.extragradient = False
    assert (
        online_dpo.look_ahead(None, SimpleNamespace(config=config), None, draw, state, {}, range(5), None)
        is state.params
    )


def test_steps_are_read_at_their_last_tokens(monkeypatch):
    """The columns of the head, in the whole row: under each is the last character of its step."""
    config = given.get_config("smoke")
    config.rollout.update(completion_length=12, prompt_buckets=(6,))
    config.encode = dict(separator="\n", truncate="refuse")
    config.algorithm = dict(loss=dict(fn="step_cross_entropy"))
    tokenizer = CharTokenizer("abc:\n")
    monkeypatch.setattr(reward_readers, "with_adapters", lambda setup, fn: fn)
    monkeypatch.setattr(reward_readers, "Packing", mock.MagicMock())
    setup = SimpleNamespace(config=config, model=mock.MagicMock(), task=SimpleNamespace(tokenizer=tokenizer))
    reader = reward_readers._steps_reader(setup)
    arrays, _ = reader.encode([dict(prompt="a:", steps=["ab", "c"], labels=[1, 0], info={})])
    batch = reader.batch(arrays, np.array([0]), 1)
    ends = np.asarray(batch.columns)[0][np.asarray(batch.mask)[0]]
    tokens = np.asarray(batch.batch.tokens)[0]
    whole = [tokenizer.decode([token]) for token in tokens.tolist()]
    assert [whole[column] for column in ends] == ["\n", "\n"]
    assert [whole[column - 1] for column in ends] == ["b", "c"]
    assert batch.labels[0][np.asarray(batch.mask)[0]].tolist() == [1.0, 0.0]


def test_an_implicit_reward_is_a_log_ratio(monkeypatch):
    """beta (log pi - log ref) of a response, here of two tokens and of one; the mask's rest is not looked at."""
    config = given.get_config("smoke")
    config.algorithm = dict(loss=dict(fn="implicit_outcome"), beta=0.5)
    log_probs = np.float32([[-1.0, -2.0], [-3.0, np.nan]])
    monkeypatch.setattr(reward_readers, "with_adapters", lambda setup, fn: fn)
    monkeypatch.setattr(reward_readers, "PreferencePacker", mock.MagicMock())
    monkeypatch.setattr(reward_readers, "make_score", lambda model, **_: lambda params, rows: SimpleNamespace(
        log_probs=jnp.asarray(log_probs)
    ))  # fmt: skip
    reader = reward_readers._log_ratio_reader(SimpleNamespace(config=config, model=None))
    mask = jnp.array([[[True, True], [True, False]]])
    tokens = TokenBatch(jnp.zeros((1, 2, 4), jnp.int32), None, None)
    reference = jnp.float32([[[-0.5, -0.5], [-1.0, 7.0]]])
    batch = PreferenceBatch(tokens, mask, jnp.ones((1, 2), bool), jnp.zeros((1, 2)), reference)
    np.testing.assert_allclose(reader.rewards(None, batch), [[[0.5 * -2.0], [0.5 * -2.0]]])


@pytest.mark.parametrize("reads", ["response", "user"])
def test_heads_read_packed_responses_at_their_ends(monkeypatch, reads):
    """As padded ones: with what an environment wrote after the last token that is learned."""
    config, packer = reward_models.get_config("smoke"), mock.MagicMock()
    monkeypatch.setattr(reward_readers, "PreferencePacker", packer)
    config.algorithm.update(reads=reads, responses=2)
    setup = SimpleNamespace(config=config, model=None, attached=None, merged=None)
    assert reward_readers.make_reader(setup).pack is packer.return_value
    packer.assert_called_once_with(setup, to_end=True)


def test_the_moments_of_a_reward_model_are_of_its_held_out_responses(monkeypatch, tmp_path):
    rewards = np.float32([[[1.0, 4.0], [3.0, 4.0]], [[5.0, 7.0], [1e9, 1e9]]])
    present = np.array([[True, True], [True, False]])
    monkeypatch.setattr(reward_model, "make_rewards", lambda setup, reader: lambda params, arrays: rewards)
    config = SimpleNamespace(benchmarks=SimpleNamespace(names=()), algorithm=SimpleNamespace(reads="response"))
    reader = SimpleNamespace(evaluate=lambda *args: {"accuracy": 1.0})
    report = reward_model.finish(SimpleNamespace(config=config), reader, tmp_path, None, ({"present": present}, []), {})
    assert report == {"held_out": {"accuracy": 1.0}}
    found = reward_model.json.loads((tmp_path / "rewards.json").read_text())
    np.testing.assert_allclose(found["means"], [3.0, 5.0])
    np.testing.assert_allclose(found["stds"], np.std([[1, 4], [3, 4], [5, 7]], axis=0), rtol=1e-6)


@pytest.mark.parametrize(
    ("init_from", "steps", "expected"),
    [("", 3, ("loaded", "sft")), ("other", 3, ("loaded", "other")), ("", 0, "random")],
)
def test_a_warm_start_is_what_the_sft_ended_with(monkeypatch, tmp_path, init_from, steps, expected):
    config = SimpleNamespace(init_from=init_from, sft=SimpleNamespace(steps=steps))
    monkeypatch.setattr(warm_start, "sft_run", mock.MagicMock())
    monkeypatch.setattr(warm_start, "fine_tune", lambda setup, loop, own: True)
    monkeypatch.setattr(warm_start, "load_params", lambda setup, folder: ("loaded", getattr(folder, "name", folder)))
    setup = SimpleNamespace(config=config, init_params=lambda: "random")
    assert warm_start.warm_start(setup, tmp_path, None) == expected
    monkeypatch.setattr(warm_start, "fine_tune", lambda setup, loop, own: False)
    assert (warm_start.warm_start(setup, tmp_path, None) is None) == (expected == ("loaded", "sft"))


@pytest.mark.parametrize(("own", "length"), [(7, 7), (0, 4)])
def test_an_evaluation_samples_by_its_own_settings(monkeypatch, own, length):
    config = arithmetic.get_config("smoke")
    config.rollout.update(temperature=1.0, completion_length=4)
    config.eval.update(temperature=0.25, completion_length=own, samples_per_prompt=3)
    made = mock.MagicMock()
    for name, stand_in in dict(make_generate=made, jit_generate=mock.MagicMock(), check_rows=mock.MagicMock()).items():
        monkeypatch.setattr(judging, name, stand_in)
    monkeypatch.setattr(judging.processes, "rows_here", lambda mesh, rows: range(rows))
    setup = mock.MagicMock(config=config)
    judging.make_evaluate(setup, lambda rows: None)
    chosen = made.call_args.kwargs
    assert chosen["sampling"].temperature == 0.25 and chosen["completion_length"] == length
    assert chosen["group_size"] == 3


@pytest.mark.parametrize(("named", "expected"), [("runs/x", ("loaded", "runs/x")), ("", "the model's own")])
def test_what_is_evaluated_is_what_the_config_names(monkeypatch, tmp_path, named, expected):
    config = SimpleNamespace(init_from=named, model=SimpleNamespace(path="folder", checkpoint=""))
    seen = []
    task = SimpleNamespace(tokenizer=None)
    setup = SimpleNamespace(config=config, task=task, init_params=lambda: "the model's own")
    for name, stand_in in dict(
        make_setup=lambda config, task: setup, with_data=lambda setup: setup, need_reward=lambda setup: None,
        load_params=lambda setup, folder: ("loaded", folder), make_rewards=lambda setup: contextlib.nullcontext(),
        left_out=lambda setup: {},
        make_any_evaluate=lambda setup, rewards: lambda params: (seen.append(params) or {"eval/reward": 1.0}, []),
    ).items():  # fmt: skip
        monkeypatch.setattr(evaluate, name, stand_in)
    assert evaluate.run(config, tmp_path) == {"eval/reward": 1.0}
    assert seen == [expected]


def test_best_of_n_samples_its_warm_start(monkeypatch, tmp_path):
    class Sampled(Exception):
        pass

    def sample(setup, params, rewards, stop):
        raise Sampled(params)

    config = arithmetic.get_config("smoke").unlock()
    config.best_of_n = best_configs.best_of_n()
    for name, stand_in in dict(
        claim=mock.MagicMock(), make_setup=mock.MagicMock(), need_reward=mock.MagicMock(), check_rows=mock.MagicMock(),
        need_gold=mock.MagicMock(), need_two_prompts=mock.MagicMock(), record_run=mock.MagicMock(),
        warm_start=lambda *args: "the warm start", sample=sample, make_rewards=lambda setup: contextlib.nullcontext(),
    ).items():  # fmt: skip
        monkeypatch.setattr(best_of_n, name, stand_in)
    with pytest.raises(Sampled, match="the warm start"):
        best_of_n.run(config, tmp_path)


def test_gold_is_the_task_s_own_reward():
    def part(rewards, own):
        return Judged(None, [], [], RewardResult(np.float32(rewards), {TASK: np.float32(own)}, 0, 0, None))

    judged = [part([5.0, 6.0], [0.0, 1.0]), part([7.0], [0.5])]
    np.testing.assert_array_equal(best_of_n.gold_scores(judged, SimpleNamespace(judge={"a": 1})), [0.0, 1.0, 0.5])
    np.testing.assert_array_equal(best_of_n.gold_scores(judged, SimpleNamespace(judge={})), [5.0, 6.0, 7.0])
