"""config.judge in the loop: terms beside the task's reward, token rewards, refusals; the programs with it."""

import json

import numpy as np
import pytest

from configs import ppo_common
from configs.preferences.best_of_n import best_of_n as best_of_n_config
from experiments import best_of_n, grpo, ppo
from experiments.parts import policy
from experiments.parts.judges import table
from experiments.parts.judges.base import Verdict
from experiments.parts.judging import Judged
from experiments.parts.rewards import make_rewards
from experiments.parts.setup import make_setup
from tests.experiments import small
from tests.experiments.shared_programs import share_programs, sharing  # noqa: F401  fixtures
from tests.experiments.small import config as small_config
from tests.experiments.small import no_evaluations  # noqa: F401  a fixture
from tests.experiments.test_rewards import rows

COMPLETIONS = ("77", "1", "", "7")


def lengths(setup, *, scale=1.0):
    """A judge of rows: their length."""

    def judge(judged):
        found = np.array([len(text) for text in judged.completions], np.float64)
        return Verdict(scale * found, components={"odd": found % 2})

    return judge


def steps(setup, *, reward=1.0):
    """A judge of tokens: a reward on the first one, where a step ends."""

    def judge(judged):
        tokens = np.zeros(judged.rollout.completion_mask.shape)
        tokens[:, 0] = reward
        return Verdict(None, tokens, np.arange(tokens.shape[1])[None, :] == np.zeros((len(tokens), 1), int))

    return judge


def broken(setup, *, how):
    wrong = {"nan": np.array([0, np.nan, 0, 0]), "short": np.zeros(3), "nothing": None}
    return lambda judged: Verdict(wrong[how])


def spec(fn, **keywords):
    return dict(fn=f"{__name__}:{fn.__name__}", **keywords)


def judged_by(tmp_path, judges, completions=COMPLETIONS, **fields):
    config = small_config(tmp_path, reward__function=small.reward(small.sevens), judge=judges, **fields)
    with make_rewards(make_setup(config)) as rewards:
        given = rows(list(completions), 2)
        return rewards.finish(Judged(given.rollout, given.records, given.completions, rewards(given)))


def test_a_judge_replaces_the_tasks_reward_which_is_logged(tmp_path):
    found = judged_by(tmp_path, {"length": spec(lengths, scale=2.0, weight=0.5)})
    assert found.result.rewards.tolist() == [2, 1, 0, 1] and found.result.rewards.dtype == np.float32
    parts = {name: column.tolist() for name, column in found.result.components.items()}
    assert parts["task"] == [2, 0, 0, 1] and parts["length"] == [4, 2, 0, 2] and parts["length/odd"] == [0, 1, 0, 1]
    assert parts["length/weighted"] == [2, 1, 0, 1] and parts["task/weighted"] == [0, 0, 0, 0]
    assert found.rollout.token_rewards is None


def late(prompt, completion, info):
    """The reward `sevens`, whose verifier fails on "1"."""
    if completion == "1":
        raise OSError("no answer in time")
    return small.sevens(prompt, completion, info)


class Lesson:
    """A learner that is due in every step, or its judge: it keeps the labels that it is given."""

    def __init__(self, needs_labels):
        self.needs_labels, self.labels, self.learner = needs_labels, [], self

    def due(self):
        return True

    def __call__(self, judged):
        return Verdict(np.ones(len(judged.completions)))

    def learn(self, judged, labels):
        self.labels.append(labels)
        return {"seen": float(len(self.labels))}


def learns(setup, *, needs_labels):
    return Lesson(needs_labels)


def test_only_judges_that_read_labels_need_the_tasks_reward_and_before_the_first_step(tmp_path):
    """Red before: every learner stopped the run at its first due step, MPO's rubric too."""
    terms = {"sevens": {"fn": small.reward(small.sevens)}}
    config = small_config(tmp_path, reward__terms=terms, judge={"rubric": spec(learns, needs_labels=False)})
    verified = make_setup(config)
    bare = verified._replace(task=verified.task._replace(reward_fn=None))
    start = "judge.rubric.retrain_every: its labels are the task's own reward, which"
    for setup, said in (
        (verified, "is no term; leave reward.terms empty"),
        (bare, "does not exist: it has no"),
    ):
        with make_rewards(setup) as rewards:
            given = rows(list(COMPLETIONS), 2)
            judged = rewards.finish(Judged(given.rollout, given.records, given.completions, rewards(given)))
            assert "task" not in judged.result.components and rewards.learn(judged) == {"judge/rubric/seen": 1.0}
        with config.unlocked():
            config.judge.rubric.needs_labels = True
        with pytest.raises(ValueError, match=f"{start} {said}"):
            make_rewards(setup._replace(config=config))
        with config.unlocked():
            config.judge.rubric.needs_labels = False
    reader = table.Judges(verified)
    reader.by_name["rubric"].needs_labels = True
    reader.check_labels(["task"], verified=True)
    reader.check_labels([], verified=True)


@pytest.mark.parametrize("judges", [dict(steps=dict(fn="steps")), dict(rubric=dict(fn="learns", needs_labels=True))])
def test_a_row_whose_verifier_failed_is_told_and_is_no_label(tmp_path, judges):
    """Red before: curricula took it for a failure of the policy, and learners for a wrong answer."""
    specs = {name: fields | dict(fn=f"{__name__}:{fields['fn']}") for name, fields in judges.items()}
    config = small_config(tmp_path, reward__function=f"{__name__}:late", judge=specs)
    with make_rewards(make_setup(config)) as rewards:
        given = rows(["7", "1", "", "7"], 2)
        judged = rewards.finish(Judged(given.rollout, given.records, given.completions, rewards(given)))
        rewards.learn(judged)
        labels = [lesson.labels for lesson in rewards._judges.learners.values()]
    assert judged.result.rewards.tolist() == ([1, 1, 1, 1] if "rubric" in judges else [1, 0, 0, 1])
    assert judged.result.failed.tolist() == [False, True, False, False]
    assert all(np.array_equal(seen, [[1, np.nan, 0, 1]], equal_nan=True) for seen in labels)


def test_a_failed_verifier_says_nothing_if_the_judges_replace_its_reward(tmp_path):
    """Curricula and dynamic sampling would leave out rows that have a reward like any other."""
    config = small_config(tmp_path, reward__function=f"{__name__}:late", judge={"length": spec(lengths)})
    with make_rewards(make_setup(config)) as rewards:
        given = rows(["7", "1", "", "7"], 2)
        found = rewards.finish(Judged(given.rollout, given.records, given.completions, rewards(given))).result
    assert found.failed is None and found.rewards.tolist() == [1, 1, 0, 1]


def test_a_judge_is_a_term_beside_others(tmp_path):
    terms = {"right": {"fn": "task", "weight": 10.0}}
    compose = dict(fn="gate", by="right", gated=("length",))  # style counts once the answer is right
    found = judged_by(tmp_path, {"length": spec(lengths)}, reward__terms=terms, reward__compose=compose)
    assert found.result.rewards.tolist() == [22, 0, 0, 11]
    config = small_config(tmp_path, reward__terms=terms, judge={"right": spec(lengths)})
    with pytest.raises(ValueError, match="judge.right and reward.terms.right have one name"):
        table.check(config.judge.to_dict(), config.reward.terms.to_dict())


def test_token_rewards_are_added_to_the_tasks(tmp_path):
    both = {"first": spec(steps, reward=2.0, weight=0.5), "again": spec(steps, weight=-3.0)}
    found = judged_by(tmp_path, both)
    assert found.result.rewards.tolist() == [2, 0, 0, 1], "the task's own"
    assert found.rollout.token_rewards.dtype == np.float32
    np.testing.assert_array_equal(found.rollout.token_rewards, [[-2, 0, 0, 0]] * 4)
    assert found.rollout.step_ends[:, 0].all() and not found.rollout.step_ends[:, 1:].any()
    assert found.result.components["first"].tolist() == [2, 2, 2, 2]


def sevens_on_tokens(setup):
    """A judge of tokens, each of which is a step: 1 for a seven."""

    def judge(judged):
        mask = judged.rollout.completion_mask
        tokens = judged.rollout.batch.tokens[:, -mask.shape[1] :]
        (seven,) = setup.task.tokenizer.encode("7")
        return Verdict(None, (mask & (tokens == seven)).astype(np.float32), mask)

    return judge


def nothing(prompt, completion, info):
    return {"reward": 0.0}


def metrics_of(workdir):
    return [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.slow
@pytest.mark.usefixtures("no_evaluations")
def test_token_rewards_are_all_that_grpo_learns_from(tmp_path):
    """By the advantage that needs the ends of steps as well; tests/advantages/test_returns.py has the others."""
    fields = dict(
        algorithm__advantage=dict(fn="process_supervised"),
        algorithm__entropy_coef=0.0,
        train__steps=2,
        reward__function=f"{__name__}:nothing",
        judge={"sevens": spec(sevens_on_tokens, weight=2.0)},
    )
    grpo.run(small_config(tmp_path, **fields), tmp_path / "run")
    found = metrics_of(tmp_path / "run")[1:]
    for row in found:
        assert row["reward/mean"] == row["reward/task"] == 0 < row["reward/sevens"]
        assert row["grad_norm"] > 0
    config = small_config(tmp_path, **fields | dict(judge={}))
    with pytest.raises(ValueError, match="needs step_ends.*Nothing in this config supplies it: a judge of tokens"):
        policy.check_choices(config)


@pytest.mark.slow
@pytest.mark.usefixtures("no_evaluations")
def test_ppo_on_a_judge_against_the_rewards_of_references(tmp_path):
    fields = dict(
        algorithm__shaping=dict(fn="against_references", slope=0.5),
        sample__references=3,
        train__steps=2,
        judge={"length": spec(lengths), "sevens": spec(sevens_on_tokens, weight=0.0)},
    )
    config = small_config(tmp_path, **fields).copy_and_resolve_references().unlock()
    ppo.run(ppo_common.with_critic(config).lock(), tmp_path / "run")
    for row in metrics_of(tmp_path / "run")[1:]:
        assert 0 < row["reward/optimized"] < 1 < row["reward/mean"] == row["reward/length"]
        assert 1 < row["reward/references"] <= 4
    with pytest.raises(ValueError, match="needs reference_rewards: .*--config.sample.references=10 does"):
        policy.check_choices(small_config(tmp_path, **fields | dict(sample__references=0)))


@pytest.mark.slow
def test_a_judge_picks_the_best_of_n_and_the_verifier_grades_them(tmp_path):
    config = small_config(
        tmp_path, reward__function=small.reward(small.sevens), judge={"length": spec(lengths)}
    ).copy_and_resolve_references()
    with config.unlocked():
        config.best_of_n = best_of_n_config(num_prompts=8, samples=4, sizes=(1, 4), batch_size=8)
    rows = best_of_n.run(config, tmp_path / "run")
    stored = np.load(tmp_path / "run" / "scores.npz")
    assert (stored["members"] == stored["members"].round()).all() and stored["members"].max() > stored["gold"].max()
    assert rows[1]["proxy"] == pytest.approx(stored["members"].max(axis=1).mean())


@pytest.mark.parametrize(
    "how, said",
    [
        ("nan", "judge.bad: the rewards of row 1 are not finite"),
        ("short", r"judge.bad gives rewards of shape \(3,\)"),
        ("nothing", "judge.bad rewards neither rows nor tokens"),
    ],
)
def test_a_broken_judge_stops_the_run(tmp_path, how, said):
    with pytest.raises(RuntimeError, match=said):
        judged_by(tmp_path, {"bad": spec(broken, how=how)})


@pytest.mark.parametrize(
    "judges, said",
    [
        ({"rm": {"path": "x"}}, "judge.rm=.*must be a dict.*the judges are confidence, .*likelihood, .*log_ratio"),
        ({"rm": dict(fn="reward_modle", path="x")}, "judge.rm: .*has no function 'reward_modle'"),
        ({"rm": dict(fn="reward_model", path="x", heads=2)}, "judge.rm: reward_model takes no keyword 'heads'"),
        ({"rm": dict(fn="reward_model", path="x", weight="big")}, "judge.rm.weight='big' must be a finite number"),
        ({"task": dict(fn="reward_model", path="x")}, "judge.task and the task's own reward"),
    ],
)
def test_a_wrong_table_is_refused_before_anything_is_loaded(judges, said):
    with pytest.raises(ValueError, match=said):
        table.check(judges, {})
    assert json.dumps(judges)
