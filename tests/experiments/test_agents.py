"""experiments.agents: one turn is experiments.grpo to the bit; episodes train, resume, and refuse what they cannot."""

import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest

from configs import agents as agents_config
from configs.preferences import episodes as episodes_config
from experiments import agents, dpo, evaluate, grpo, sft
from experiments.parts import play_groups, players, policy, recordings, row_rewards
from experiments.parts.judging import need_reward
from experiments.parts.setup import make_setup
from experiments.report import cli as report
from experiments.report import conversations
from rl_jax.envs.text import Step
from rl_jax.experience import trajectory as t
from rl_jax.rollout.lm.episodes import as_rollout
from rl_jax.runs.logging import read_jsonl
from rl_jax.tokenizers import CharTokenizer
from tests.experiments import small
from tests.experiments.shared_programs import share_programs, sharing  # noqa: F401  fixtures
from tests.experiments.small import kept_signals, reward, sevens_and_even  # noqa: F401  a fixture

SHARED = "final.json"
STATES = "rl_jax.advantages.turn_states"


def calculator(tmp_path, **fields):
    """The smallest run of the calculator, without a warm start."""
    config = agents_config.get_config("smoke")
    config.task.update(data_dir=str(tmp_path / "data"), digits=2)
    config.model.update(embed_dim=32, num_layers=1, num_heads=2, num_kv_heads=2, head_dim=16, mlp_dim=64)
    config.sft.steps = 0
    config.rollout.completion_length = 24
    config.agent.update(max_turns=3, max_turn_tokens=6)
    config.sample.update(prompts_per_step=2, group_size=2)
    config.eval.update(every=2, num_prompts=4, batch_size=4)
    config.log.update(progress=False, tensorboard=False)
    config.agent.record = True
    config.checkpoint.every = 3  # and after the fourth step, the last
    for name, value in fields.items():
        *groups, last = name.split("__")
        group = config
        for part in groups:
            group = group[part]
        group[last] = value
    return config.lock()


@pytest.mark.slow
@pytest.mark.usefixtures("kept_signals")
def test_one_turn_is_grpo_to_the_bit(tmp_path):
    fields = dict(
        train__steps=3,
        train__minibatches=2,
        reward__function=reward(sevens_and_even),
        rollout__engine=dict(name="continuous", slots=4, url="", model="", timeout_s=1.0, sync=dict(fn="")),
        sample__dynamic_sampling__max_batches=2,
        checkpoint__every=3,
    )
    config = small.config(tmp_path, **fields)
    grpo.run(config, tmp_path / "grpo")
    with config.unlocked():
        episodes = agents_config.of(config.copy_and_resolve_references())
    agents.run(episodes.lock(), tmp_path / "agents")
    ours, theirs = (json.loads((tmp_path / name / "final.json").read_text()) for name in ("agents", "grpo"))
    assert ours == theirs  # the sum of all params among it
    ours, theirs = (read_jsonl(tmp_path / name / "metrics.jsonl") for name in ("agents", "grpo"))
    for row, like in zip(ours, theirs, strict=True):
        assert {name: row[name] for name in like} == like
        assert {name.split("/")[0] for name in set(row) - set(like)} <= {"episode"}
    ours, theirs = (read_jsonl(tmp_path / name / "samples.jsonl") for name in ("agents", "grpo"))
    assert [{name: row[name] for name in like} for row, like in zip(ours, theirs, strict=True)] == theirs


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A whole run of the calculator."""
    folder = tmp_path_factory.mktemp("calculator")
    agents.run(calculator(folder), folder / "run")
    return folder


@pytest.mark.slow
@pytest.mark.usefixtures("kept_signals")
def test_episodes_are_trained_on_and_shown(finished):
    rows = read_jsonl(finished / "run/metrics.jsonl")
    assert [row["step"] for row in rows] == [0, 1, 2, 3, 4]
    last = rows[-1]
    assert last["episode/turns"] >= 1 and 0 <= last["eval/pass@1"] <= 1
    ends = [last[f"episode/end/{end}"] for end in play_groups.ENDS]
    assert sum(ends) == pytest.approx(1) and last["episode/end/error"] == 0
    shown = [row for row in read_jsonl(finished / "run/samples.jsonl") if row["split"] == "train"]
    by = [turn["by"] for turn in shown[-1]["conversation"]]
    assert by[0] == "prompt" and "sampled" in by
    assert all(turn["trained"] == (turn["by"] == "sampled") for row in shown for turn in row["conversation"])
    assert sum(turn.get("reward", 0) for turn in shown[-1]["conversation"]) == pytest.approx(shown[-1]["reward"])


@pytest.mark.slow
@pytest.mark.usefixtures("kept_signals")
def test_nothing_compiles_after_the_first_step_and_evaluate_plays_too(finished, tmp_path):
    counts = [row["compile_count"] for row in read_jsonl(finished / "run/timing.jsonl") if "compile_count" in row]
    assert len(set(counts)) == 1
    config = calculator(finished, init_from=str(finished / "run"), eval__samples_per_prompt=2)
    metrics = evaluate.run(config, tmp_path / "evaluation")
    assert metrics["eval/episode/turns"] >= 1 and metrics["eval/pass^2"] <= metrics["eval/pass@1"]
    shown = json.loads((tmp_path / "evaluation/evaluation.json").read_text())["samples"]
    assert len(shown) == 8 and all(row["conversation"][0]["by"] == "prompt" for row in shown)


@pytest.mark.slow
@pytest.mark.usefixtures("kept_signals")
def test_a_run_resumes_to_the_bit(finished, tmp_path):
    shutil.copytree(finished / "run", tmp_path / "run")
    shutil.rmtree(tmp_path / "run/checkpoints/4")
    assert (tmp_path / "run/checkpoints/3").exists()
    (tmp_path / "run/final.json").unlink()
    (tmp_path / "run/trajectories/00000004.parquet").unlink()
    agents.run(calculator(finished), tmp_path / "run")
    for name in ("final.json", "metrics.jsonl", "samples.jsonl", "trajectories/00000004.parquet"):
        assert (tmp_path / "run" / name).read_bytes() == (finished / "run" / name).read_bytes()


@pytest.mark.slow
@pytest.mark.usefixtures("kept_signals")
@pytest.mark.parametrize("pairs", ["episodes", "turns", "good"])
def test_dpo_and_sft_train_on_the_recorded_episodes(finished, tmp_path, pairs):
    """Of what was sampled, token by token: the reference's log-probs of it are the sampler's."""
    like, config = calculator(finished), episodes_config.get_config(f"guess,{pairs},smoke")
    config.task, config.model, config.rollout.completion_length = like.task, like.model, 24
    config.rollout.prompt_buckets = (max(like.rollout.prompt_buckets) + (24 if pairs == "turns" else 0),)
    config.data.update(path=str(finished / "run"), gap=0.01, least=-1.0, test_share=0.0 if pairs == "good" else 0.3)
    config.init_from = "" if pairs == "good" else str(finished / "run")
    config.log.update(progress=False, tensorboard=False)
    config.eval.update(every=2, num_prompts=4, batch_size=4)
    if pairs == "good":
        config.sft.update(steps=3, eval_every=3)
        assert sft.run(config.lock(), tmp_path / "run")
        rows = read_jsonl(tmp_path / "run/metrics.jsonl")
        assert [row["loss"] for row in rows if "loss" in row][-1] > 0
        return
    config.train.update(steps=2, batch_size=4)
    dpo.run(config.lock(), tmp_path / "run")
    rows = read_jsonl(tmp_path / "run/metrics.jsonl")
    assert rows[0]["eval/loss"] == pytest.approx(np.log(2), rel=1e-4)  # the policy is the reference
    assert rows[-1]["step"] == 2 and rows[-1]["grad_norm"] > 0


@pytest.mark.slow
def test_the_report_has_its_conversations_and_curves(finished):
    page = report.write_report([finished / "run"]).read_text()
    assert "Missing from this run" not in page and "token by token" not in page
    assert "model (turn 0" in page and "<b>episode/turns<span>" in page


def test_an_episode_is_shown_as_a_conversation():
    said = dict(by="sampled", text="c1*2", turn=0, reward=-0.05, numbers={"calls": 1, "correct": 0}, trained=True)
    rows = [dict(by="prompt", text="1*2=", trained=False), said, dict(by="observation", text="?2=", trained=False)]
    assert conversations.as_text(dict(conversation=rows, status="turns", error="")) == (
        "prompt: 1*2=\nmodel (turn 0, reward -0.05, calls 1, trained on): c1*2\nenvironment: ?2=\n[turns]"
    )
    assert conversations.as_text(dict(completion="3")) == ""


def failing(statuses, rewards):
    """One-turn trajectories of one group."""
    spans = (t.prompt([1, 4]), t.sampled([5, 2], [-1.0, -1.0]))
    return [
        t.Trajectory(
            "p", 0, n, (spans,), (t.Turn(reward, "", {"calls": 1.0, "correct": reward}),), status, "OSError: x"
        )
        for n, (status, reward) in enumerate(zip(statuses, rewards, strict=True))
    ]


class Decoder:
    """Of ids."""

    def decode(self, ids):
        return " ".join(map(str, ids))


def test_recorded_groups_of_several_batches_are_told_apart():
    """With dynamic sampling, each batch of prompts counts its groups from 0."""
    batches = [x._replace(prompt_id=name) for name in "pq" for x in failing(["done", "done"], [1.0, 0.0])]
    rollout = as_rollout(batches, prompt_length=2, completion_length=3, pad_id=0)
    found = recordings.with_outcomes(batches, rollout)
    assert [(x.prompt_id, x.group, x.sample) for x in found] == [("p", 0, 0), ("p", 0, 1), ("q", 1, 0), ("q", 1, 1)]


def test_evaluations_with_a_rule_of_their_own_have_the_runs_partners(tmp_path, monkeypatch):
    setup, player = SimpleNamespace(config=calculator(tmp_path)), SimpleNamespace(envs=None)
    monkeypatch.setattr(players, "Player", lambda *_: SimpleNamespace())
    assert players.eval_player(setup, player) is player
    setup.config.eval.temperature = 0.5
    assert players.eval_player(setup, player)._leader is player


def test_a_failed_row_leaves_its_group():
    setup = type("Setup", (), {"task": type("Task", (), {"tokenizer": Decoder()})})
    found = failing(["done", "error", "done", "turns"], [1.0, 0.0, 0.0, 0.5])
    rollout = as_rollout(found, prompt_length=2, completion_length=3, pad_id=0)
    judged = play_groups.judge_episodes(setup, None, found, rollout, [{"prompt": "p", "info": "{}"}], 4)
    assert judged.result.rewards.tolist() == [1.0, 0.5, 0.0, 0.5]  # the mean of the others: no baseline moves
    assert judged.rollout.completion_mask.any(axis=1).tolist() == [True, False, True, True]
    equal = np.full(8, 0.95, np.float32)  # a group without a signal stays one: dynamic sampling drops it
    assert np.ptp(row_rewards.without_errors(equal * (np.arange(8) > 0), np.arange(8) == 0, 8)) == 0
    assert judged.result.components["correct"].tolist() == [1.0, 0.0, 0.0, 0.5]
    np.testing.assert_allclose(judged.rollout.turns.rewards.sum(axis=1), [1.0, 0.0, 0.0, 0.5])
    metrics = play_groups.episode_metrics(found)
    assert metrics["episode/end/error"] == 0.25 and metrics["episode/calls"] == 1.0
    with pytest.raises(RuntimeError, match="failed in all 2 episodes, twice each.*prompt 'p': OSError: x"):
        play_groups.rows_of(setup, failing(["error", "error"], [0.0, 0.0]))


def test_an_environment_that_the_characters_cannot_write_is_told_the_config_for_it():
    with pytest.raises(ValueError) as unwritten:
        CharTokenizer("01").encode("G")
    failed = [one._replace(error=str(unwritten.value)) for one in failing(["error"], [0.0])]
    with pytest.raises(RuntimeError, match=r"character 'G'.* '01'\. The tokenizer .*--config=configs/agents.py:own"):
        play_groups.rows_of(None, failed)


def test_components_that_lack_what_the_environment_pays_are_refused(tmp_path):
    paid, free = failing(["done", "done"], [1.0, 0.0]), failing(["done", "error"], [0.0, 0.0])
    config = calculator(tmp_path, algorithm__advantage=dict(fn="gdpo"))
    play_groups.check_components(config, free)
    with pytest.raises(ValueError, match="'gdpo' reads components of the reward, and the 1.0 that agent.env='calcul"):
        play_groups.check_components(config, paid)
    play_groups.check_components(calculator(tmp_path), paid)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("rollout__engine__name", "lockstep", "rollout.engine.name='lockstep' does not work in experiments.agents"),
        ("rollout__long_prompts", "cut", "rollout.long_prompts='cut'"),
        ("eval__completion_length", 9, "eval.completion_length=9"),
        ("rollout__window", 2, "rollout.window=2 does not work"),
        ("algorithm__action_mask__top_p", 0.9, "algorithm.action_mask.top_p=0.9 does not work"),
        ("sample__references", 2, "sample.references=2"),
        ("agent__overflow", "wrap", "agent.overflow='wrap' is none of end, cut, drop_oldest"),
        ("agent__on_rewrite", "x", "agent.on_rewrite='x' is none of keep, refuse"),
        ("agent__max_turns", 0, "agent.max_turns=0 must be 1 or more"),
        ("agent__max_tokens", -1, "agent.max_tokens=-1 must be 0"),
        ("agent__max_context", 7, "agent.max_context=7 leaves no token"),
        ("rollout__stop_strings", ("=",), "rollout.stop_strings: an answer"),
        ("algorithm__advantage", dict(fn="remax"), "'remax' needs greedy episodes"),
        ("agent__env", dict(fn="calculater"), "nearest: 'calculator'"),
        ("agent__env", dict(fn="calculator", cost=1), "takes no keyword 'cost'"),
        ("agent__env", dict(fn="tool_user", tools=()), "agent.env.tools is empty"),
        ("agent__env", dict(fn="one_answer"), "agent.max_turn_tokens=6: rollout.completion_length limits one answer"),
        ("algorithm__advantage", dict(fn=f"{STATES}:gigpo"), "gigpo' compares states: .*'calculator' has no state_key"),
    ],
)
def test_what_cannot_work_is_refused_before_work(tmp_path, field, value, message):
    with pytest.raises(ValueError, match=message):
        agents.run(calculator(tmp_path, **{field: value}), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_loss_per_turn_is_refused_where_there_are_no_turns(tmp_path):
    turn_clip = dict(fn="rl_jax.losses.policy.turns:turn_clip")
    policy.check_choices(calculator(tmp_path, algorithm__surrogate=turn_clip))
    with pytest.raises(ValueError, match="algorithm.surrogate=.*turn_clip' needs turns.*python -m experiments.agents"):
        policy.check_choices(small.config(tmp_path, algorithm__surrogate=turn_clip))


def test_a_single_turn_without_a_reward_is_refused(tmp_path):
    setup = make_setup(calculator(tmp_path, agent__env=dict(fn="one_answer")))
    with pytest.raises(ValueError, match="has no reward of its own"):
        need_reward(setup)


class Counting:
    """An environment of one's own, by its import path."""

    opened = []

    def __init__(self, *, to=2):
        self.to, self.closed = to, False
        self.opened.append(self)

    def close(self):
        self.closed = True

    def reset(self, record, seed):
        self.said = 0
        return "1*1="

    def step(self, said):
        self.said += 1
        return Step([{"role": "user", "content": "="}], float(self.said), self.said == self.to)


def test_the_player_of_evaluations_has_the_environments_that_are_closed(tmp_path):
    setup = make_setup(calculator(tmp_path, eval__top_k=1))
    player = players.Player(setup, 4)
    other = players.eval_player(setup, player)
    assert other is not player and other.envs is player.envs


def test_environments_that_are_only_asked_something_are_closed(tmp_path):
    config = calculator(tmp_path, agent__env=dict(fn="tests.experiments.test_agents:Counting"))
    Counting.opened.clear()
    players.check(config)
    assert [env.closed for env in Counting.opened] == [True]
    players.Player(make_setup(config), 4)
    assert [env.closed for env in Counting.opened] == [True, True]


def test_experiments_evaluate_closes_its_environments(tmp_path, monkeypatch):
    setup = make_setup(calculator(tmp_path, agent__env=dict(fn="tests.experiments.test_agents:Counting")))
    asked = lambda setup, rewards, player: lambda params: player.envs.get(params)  # noqa: E731
    monkeypatch.setattr(play_groups, "make_episode_evaluate", asked)
    evaluate_once = play_groups.make_any_evaluate(setup, None)
    assert evaluate_once(0).closed and evaluate_once(0).closed


def test_an_environment_of_ones_own(tmp_path):
    config = calculator(tmp_path, agent__env=dict(fn="tests.experiments.test_agents:Counting", to=3))
    players.check(config)
    assert players.environment_of(config)().to == 3
    assert players.limits_of(config).context == max(config.rollout.prompt_buckets) + 24
