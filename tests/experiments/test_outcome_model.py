"""parts/outcome_model.py, tools/outcomes.py: an outcome model reads episodes, learns what is right, and alone pays."""

import json
import random
import re
from types import SimpleNamespace

import numpy as np
import pyarrow.parquet
import pytest

from configs import agents_papers
from configs.preferences import outcome_model as configured
from experiments import ppo, sft
from experiments.parts import outcome_model, players, recordings, turn_rewards
from experiments.parts.judging import Judged
from experiments.parts.prompts import feedback_of
from experiments.parts.setup import make_setup
from experiments.tools import outcomes as tool
from rl_jax.core.types import TokenBatch
from rl_jax.envs.text.orders import Orders
from rl_jax.experience import trajectory
from rl_jax.experience.prompt import prompt_id
from rl_jax.preferences import outcomes
from rl_jax.rewards.pool import RewardResult
from rl_jax.rollout.lm.episodes import as_rollout
from rl_jax.runs.logging import read_jsonl
from tests.envs.test_orders import TWO
from tests.experiments.shared_programs import share_programs, sharing  # noqa: F401  fixtures
from tests.experiments.small import kept_signals, no_evaluations  # noqa: F401  fixtures
from tests.preferences.test_outcomes import TOKENIZER, episode

TINY = dict(embed_dim=32, num_layers=2, num_heads=2, num_kv_heads=2, head_dim=16, mlp_dim=64)


def of_model(folder, rows):
    """The config of an outcome model that is trained on rows, {"train", "test"}."""
    config = configured.get_config("smoke")
    folder.mkdir(parents=True, exist_ok=True)
    for name, found in rows.items():
        plain = [{key: value for key, value in row.items() if key != "answer"} for row in found]  # nothing to evaluate
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in plain))
    config.task.update(path=str(folder / "train.jsonl"), test_path=str(folder / "test.jsonl"))
    config.task.data_dir = str(folder / "data")
    config.model.update(TINY)
    config.log.update(progress=False, tensorboard=False)
    return config


def rows_of_orders(count, seed, share=0.8):
    """Lines of outcomes.record: one thing is ordered, a share of the turns is the expert's."""
    env, dice, found = Orders(things=1), random.Random(seed), []
    for _, (prompt, info) in zip(range(count), env.problems(dice), strict=False):
        record = {"prompt": prompt, "info": json.dumps(info)}
        env.reset(record, 0)
        actions, page, step = [], prompt.removeprefix(env.instruction(record)), None
        while step is None or not step.done:
            page = step.messages[0]["content"] if step else page
            actions.append(env.expert(dice) if dice.random() < share else env.novice(dice))
            step = env.step(actions[-1])
        found.append(outcomes.record(outcomes.Seen(env.instruction(record), actions, page), step.reward > 0.5))
    return found


@pytest.mark.slow
def test_the_model_is_asked_for_its_next_token_after_the_question(tmp_path):
    """Row by row without padding, with the softmax in numpy."""
    rows = rows_of_orders(6, 0)
    config = of_model(tmp_path, {"train": rows[:3], "test": rows[3:]})
    setup = make_setup(config.lock())
    params, tokenizer = setup.init_params(), setup.task.tokenizer
    asked = ["a", *(row["prompt"] for row in rows), "b" * 300 + "c"]
    found, expected = outcome_model.make_reader(setup, params)(asked), []
    for text in asked:
        ids = np.int32([tokenizer.encode(text[-191:], bos=True)])  # of a longer question its end
        batch = TokenBatch(ids, np.arange(ids.shape[1], dtype=np.int32)[None], np.ones_like(ids))
        logits = np.asarray(setup.model.unembed(params, setup.model.apply(params, batch)))[0, -1].astype(np.float64)
        log_probs = logits - np.log(np.exp(logits).sum())
        expected.append([log_probs[3 + ord(word[0])] for word in ("YES", "NO")])
    assert tokenizer.encode_continuation("YES")[0] == 3 + ord("Y")  # after padding and the two ends
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    assert outcome_model.make_reader(setup, params)([]).shape == (0, 2)


def judged_of(episodes, site, group=1):
    """The rows of a step whose environment has paid `site` at the end of each, as the word `correct` says, too."""
    rollout = as_rollout(episodes, prompt_length=32, completion_length=40, pad_id=0, counts=("correct",))
    records = [TWO | {"episode": one, "index": i, "id": str(i)} for i, one in enumerate(episodes)]
    own = np.float32(site)
    result = RewardResult(own, {"correct": own, "x/correct": own, "malformed": own}, 0, 0, None, own > 9)
    return Judged(rollout, records, [""] * len(episodes), result)


@pytest.fixture
def asked(monkeypatch):
    """Questions that were asked; the reader says YES if an action is "x1", by a hair."""
    questions = []

    def read(texts):
        questions.extend(texts)
        return np.array([[-3.0, -3.0 - 1e-6 if "\nx1\n" in text else -3.0 + 1e-6] for text in texts]).reshape(-1, 2)

    monkeypatch.setattr(outcome_model, "load_reader", lambda setup, path: read)
    return questions


def setup_of(group_size=1):
    """As much of a Setup as an OutcomeModel reads."""
    config = agents_papers.get_config("webrl,outcome_model,smoke")
    config.sample.group_size = group_size
    return SimpleNamespace(config=config, task=SimpleNamespace(tokenizer=TOKENIZER))


HOME = TWO["prompt"].removeprefix("cat top?")


def test_the_environment_that_says_what_was_asked_is_closed(asked, monkeypatch):
    opened, closed = [], []

    def make():
        opened.append(players.environment_of(setup_of().config)())
        opened[-1].close = lambda env=opened[-1]: closed.append(env)
        return opened[-1]

    monkeypatch.setattr(outcome_model, "bind", lambda *_: make)
    model = turn_rewards.make_turn_rewards(setup_of())
    model(judged_of([episode(TWO["prompt"], "x1", rewards=(1.0,))], [1]))
    assert opened and closed == opened and len(asked) == 1


def test_its_word_is_the_only_reward(asked):
    """Whatever the site has paid: rewards, turns, what prompts hear of and what is recorded are the model's word."""
    texts = [("0", "0dog\n", "x1"), ("x1",), ("0", "0dog\n", "x4"), ("b", HOME, "0", "0dog\n")]
    for site in ([1, 0, 1, 0], [0, 0, 0, 0], [0, 1, 1, 1]):
        episodes = [
            episode(TWO["prompt"], *said, rewards=(paid,), group=i)
            for i, (said, paid) in enumerate(zip(texts, map(float, site), strict=True))
        ]
        before = judged_of(episodes, site)
        found = turn_rewards.make_turn_rewards(setup_of())(before)
        assert found.result.rewards.tolist() == [1, 1, 0, 0] and found.result.rewards.dtype == np.float32
        turns, sampled = found.rollout.turns, found.rollout.turns.numbers >= 0
        last = [np.flatnonzero(row)[-1] for row in sampled]
        assert [row[place] for row, place in zip(turns.rewards, last, strict=True)] == [
            1,
            1,
            0,
            0,
        ] and turns.rewards.sum() == 2
        assert before.rollout.turns.rewards.sum() == sum(site)  # what was judged stays
        told = feedback_of([found], 1)
        assert told.success.ravel().tolist() == [1, 1, 0, 0] == told.rewards.ravel().tolist()
        assert "correct" not in found.result.components and "x/correct" not in found.result.components
        columns = found.result.components
        assert columns["outcome/word"].tolist() == [1, 1, 0, 0] and columns["outcome/site"].tolist() == site
        assert "malformed" in columns
        kept = recordings.with_outcomes(episodes, found.rollout)
        assert [one.reward for one in kept] == [1, 1, 0, 0]
        said = outcomes.agreement(np.bool_([1, 1, 0, 0]), np.bool_(site))
        assert outcome_model.agreement_of(found) == {f"outcome/{name}": value for name, value in said.items()}
    assert outcome_model.agreement_of(before) == {}
    assert asked[0] == outcomes.question(outcomes.Seen("cat top?", ["0", "x1"], "0dog\n")) and len(asked) == 12
    assert asked[1] == outcomes.question(outcomes.Seen("cat top?", ["x1"], HOME))


def test_a_row_whose_environment_failed_is_not_asked_for_and_moves_no_mean(asked):
    texts = [("x1",), ("0",), ("x4",), ("x1",)]
    episodes = [episode(TWO["prompt"], *said, status="error" if said == ("0",) else "done", group=0) for said in texts]
    found = turn_rewards.make_turn_rewards(setup_of(4))(judged_of(episodes, [0, 0, 0, 0]))
    np.testing.assert_allclose(found.result.rewards, [1, 2 / 3, 0, 1], rtol=1e-6)
    assert len(asked) == 3 and found.rollout.turns.rewards.sum() == 2
    assert outcome_model.agreement_of(found) == pytest.approx({"outcome/accuracy": 1 / 3, "outcome/precision": 0.0})


def test_what_does_not_go_with_it_is_refused(tmp_path):
    config = agents_papers.get_config("webrl,outcome_model,smoke")
    players.check(config)
    config.agent.turn_rewards.path = ""
    config.reward.terms = {"right": {"fn": "task"}}
    with pytest.raises(
        ValueError, match="is the only reward: reward.terms must be empty(.|\n)*must have a path, and no"
    ):
        players.check(config)
    config = agents_papers.get_config("webrl,outcome_model,smoke")
    config.agent.env = dict(fn="rl_jax.envs.text.maze:Maze", size=3, most=8)
    config.agent.curriculum = dict(fn="")
    with pytest.raises(ValueError, match="fn='outcome': agent.env='.*Maze' has no instruction\\(\\)"):
        players.check(config)
    config = agents_papers.get_config("vla_rl,alone,smoke")
    config.agent.update(turn_rewards=dict(fn="outcome", path="x"), branching=dict(fn="at_random"), roots=2)
    with pytest.raises(ValueError, match="branching.fn='at_random' may read the site's"):
        players.check(config)
    config = agents_papers.get_config("webrl,outcome_model,smoke")
    config.agent.replay = dict(fn="successes", size=4, std=0.1, mean=0.5, above=0.5)
    with pytest.raises(ValueError, match="agent.replay.fn='successes' goes by the site's word"):
        players.check(config)
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun/run.json").write_text("{}")
    with pytest.raises(ValueError, match="begun' is a run that has not finished"):
        outcome_model.load_reader(setup_of(), tmp_path / "begun")
    said = (
        f"train one with python -m experiments.sft --config=configs/preferences/outcome_model.py --workdir={tmp_path}"
    )
    with pytest.raises(FileNotFoundError, match=re.escape(said) + "$"):
        outcome_model.load_reader(None, tmp_path)
    assert tool.main(["check", "--model", str(tmp_path), "--data", str(tmp_path / "none")]) == 2


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """(folder of a model that has learned from 700 episodes, half of them right; the folder of its data)."""
    folder, found = tmp_path_factory.mktemp("outcomes"), {True: [], False: []}
    for row in rows_of_orders(3_000, 0):
        found[row["right"]].append(row)
    count = min(map(len, found.values()))
    rows = [row for pair in zip(found[True][:count], found[False][:count], strict=True) for row in pair]
    splits = outcomes.split(rows, [i % 10 < 2 for i in range(len(rows))])
    config = of_model(folder, splits)
    config.rollout.update(prompt_buckets=(96,))
    config.sft.update(steps=60, batch_size=32, eval_every=1_000)
    config.sft.optimizer.update(learning_rate=5e-3, warmup_steps=10, decay_steps=50)
    sft.run(config.lock(), folder / "model")
    return folder / "model", folder


@pytest.mark.slow
@pytest.mark.usefixtures("kept_signals", "no_evaluations")
def test_what_is_right_is_learned_of_unseen_episodes(trained, capsys):
    model, folder = trained
    assert tool.main(["check", "--model", str(model), "--data", str(folder / "test.jsonl")]) == 0
    found = dict(re.findall(r"(\w+) ([\d.]+)", capsys.readouterr().out))
    assert float(found["same_word"]) < 0.6 and float(found["accuracy"]) > 0.72, found  # .82


@pytest.mark.slow
@pytest.mark.usefixtures("kept_signals", "no_evaluations")
def test_episodes_of_a_run_are_written_and_ppo_is_paid_by_the_model(trained, tmp_path, capsys):
    model, _ = trained
    config = agents_papers.get_config("webrl,outcome_model,smoke")
    config.task.update(data_dir=str(tmp_path / "data"), num_train=20, num_test=4, written=0)
    config.model.update(embed_dim=16, num_layers=1, head_dim=8, mlp_dim=32)
    config.log.update(progress=False, tensorboard=False)
    config.agent.update(max_turns=2, turn_rewards=dict(fn="outcome", path=str(model)), curriculum=dict(fn=""))
    config.rollout.completion_length = 60
    config.critic.warmup_steps = 0
    config.sample.update(prompts_per_step=4, group_size=1)
    config.init_from, config.sft.steps, config.train.steps = "", 0, 1
    ppo.run(config.lock(), tmp_path / "run")
    (row,) = read_jsonl(tmp_path / "run/metrics.jsonl")[1:]
    assert row["reward/mean"] == row["reward/outcome/word"] and 0 <= row["outcome/accuracy"] <= 1
    (file,) = (tmp_path / "run/trajectories").iterdir()
    kept = trajectory.from_table(pyarrow.parquet.read_table(file))
    assert np.mean([one.reward for one in kept]) == row["reward/mean"]
    play = ["play", "--run", str(tmp_path / "run"), "--out", str(tmp_path / "out"), "--tasks=8", "--samples=2"]
    assert tool.main([*play, "--held_out=0.5"]) == 0 and "of them right" in capsys.readouterr().out
    rows = {name: outcomes.read(tmp_path / f"out/{name}.jsonl") for name in ("train", "test")}
    assert not {row["prompt"] for row in rows["train"]} & {row["prompt"] for row in rows["test"]}
    for one in (*rows["train"], *rows["test"]):
        again = outcomes.Seen(one["instruction"], one["actions"], one["page"])
        assert one["prompt"] == outcomes.question(again) and one["answer"] == ("YES" if one["right"] else "NO")


def test_a_share_of_the_tasks_that_are_played_has_another_instruction_on_the_same_pages():
    env, dice = Orders(), random.Random(0)
    source = [{"prompt": p, "info": json.dumps(i)} for _, (p, i) in zip(range(40), env.problems(dice), strict=False)]
    drawn = tool.drawn_tasks(source, env, 60, 0.5, dice)
    by_id = {prompt_id(record): record for record in source}
    other = [record["prompt"] != by_id[origin]["prompt"] for record, origin in drawn]
    assert sum(other) == 30 and len(drawn) == 60
    for record, origin in drawn:
        new, old = (json.loads(one["info"]) for one in (record, by_id[origin]))
        assert new.pop("wanted") and old.pop("wanted") and new == old
    assert len({origin for _, origin in drawn[:40]}) == 40
    assert not any(r["prompt"] != by_id[o]["prompt"] for r, o in tool.drawn_tasks(source, env, 9, 0.0, dice))
