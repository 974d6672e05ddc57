"""Rows of config.foreign that are made of a step's own answers: verifications and progress, and a run with both."""

import json

import jax
import numpy as np
import pytest

from experiments import grpo
from experiments.parts import foreign_own, foreign_program_play, foreign_rows
from rl_jax.selection import foreign_rows as selected_rows
from rl_jax.selection import own_rows, program_play, self_play
from tests.experiments import small
from tests.experiments.shared_programs import share_programs, sharing  # noqa: F401  fixtures
from tests.experiments.small import config as small_config
from tests.experiments.small import kept_signals, no_evaluations, reward  # noqa: F401  a fixture
from tests.experiments.test_foreign_rows import GROUPS, LENGTH, SIZE, Step

VERIFICATION = dict(
    fn="experiments.parts.foreign_own:self_verification",
    at_most=SIZE,
    share=0.5,
    replace="group",
    template="{prompt}{answer}=",
)
PROGRESS = dict(fn="experiments.parts.foreign_own:progress", at_most=SIZE, replace="group")


@pytest.fixture(scope="module")
def step(tmp_path_factory):
    return Step(tmp_path_factory.mktemp("step"))


def prompts(step, judged):
    """The prompts of the rows, as text."""
    batch = judged.rollout.batch
    width = batch.tokens.shape[1] - LENGTH
    rows = zip(batch.tokens[:, :width], batch.segment_ids[:, :width], strict=True)
    return [step.setup.task.tokenizer.decode(ids[live > 0].tolist()) for ids, live in rows]


@pytest.mark.slow
def test_some_groups_judge_an_answer_of_this_step(step):
    found = step.with_rows(check=VERIFICATION)
    placed = found.metrics["foreign/check/rows"]
    assert 0 < placed < GROUPS * SIZE and placed % SIZE == 0 and found.metrics["foreign/rows"] == 0
    asked, plain = prompts(step, found.judged), prompts(step, step.plain.judged)
    given = zip(plain, step.plain.judged.completions, step.plain.judged.result.rewards, strict=True)
    shown = {f"{prompt}{answer}=": score for prompt, answer, score in given}
    changed = [row for row in range(GROUPS * SIZE) if asked[row] != plain[row]]
    assert len(changed) == placed
    for row in changed:
        due = "1" if shown[asked[row]] > 0 else "0"
        assert found.judged.result.rewards[row] == float(found.judged.completions[row].strip() == due)
        assert found.judged.records[row]["prompt"] == asked[row]
    assert found.metrics["foreign/check/accuracy"] == found.judged.result.rewards[changed].mean()
    assert (found.judged.rollout.sampled_log_probs[changed] <= 0).all(), "they are the policy's own draws"


@pytest.mark.slow
def test_after_the_end_nothing_is_gained(step, monkeypatch):
    """The rows stay; forced after its last token an answer is worth what it is, so that the progress is 0."""
    plain = step.plain.judged
    found = step.with_rows(mrt=PROGRESS | dict(outcome=1.0, alpha=0.0))
    np.testing.assert_array_equal(found.judged.result.rewards, plain.result.rewards)
    assert found.judged.completions == plain.completions and found.metrics["foreign/mrt/rows"] == GROUPS * SIZE
    np.testing.assert_array_equal(found.judged.rollout.sampled_log_probs, plain.rollout.sampled_log_probs)
    monkeypatch.setattr(own_rows, "random_cuts", lambda key, lengths: lengths)
    found = step.with_rows(mrt=PROGRESS)
    np.testing.assert_array_equal(found.judged.result.rewards, 0.0)
    assert found.metrics["foreign/mrt/regret"] == pytest.approx(1 - plain.result.rewards.mean())
    # From nothing: another answer to the prompt, which is right or wrong on its own.
    monkeypatch.setattr(own_rows, "random_cuts", lambda key, lengths: 0 * lengths)
    found = step.with_rows(mrt=PROGRESS)
    stopped = plain.result.rewards - found.judged.result.rewards
    assert set(stopped) <= {0.0, 1.0}
    assert found.metrics["foreign/mrt/progress"] == pytest.approx(found.judged.result.rewards.mean())


@pytest.mark.slow
def test_one_token_is_worth_what_the_guide_makes_of_it(step, monkeypatch):
    """Only that token is trained on; the last one of a finished answer is worth the answer, less what came before."""
    plain, spec = step.plain.judged, dict(fn="experiments.parts.foreign_own:guided_roll_outs", at_most=SIZE)
    with pytest.raises(ValueError, match="foreign.aggrevate: guided_roll_outs needs a reference policy"):
        step.with_rows(aggrevate=spec | dict(replace="group"))
    whole = foreign_rows.ForeignRows.__call__
    monkeypatch.setattr(foreign_rows.ForeignRows, "__call__", lambda self, *args: whole(self, *args, guide=step.params))
    found = step.with_rows(aggrevate=spec | dict(replace="group")).judged
    mask = found.rollout.completion_mask
    assert (mask.sum(axis=1) == 1).all() and (mask <= plain.rollout.completion_mask).all()
    assert set(np.unique(found.result.rewards)) <= {-1.0, 0.0, 1.0} and found.completions == plain.completions
    monkeypatch.setattr(own_rows, "random_cuts", lambda key, lengths: lengths - 1)
    last = step.with_rows(aggrevate=spec | dict(replace="group"))
    lengths = plain.rollout.completion_mask.sum(axis=1)
    np.testing.assert_array_equal(last.judged.rollout.completion_mask.argmax(axis=1), lengths - 1)
    value = last.metrics["foreign/aggrevate/value"]
    ended = plain.rollout.finished
    gained = plain.result.rewards[ended] - last.judged.result.rewards[ended]  # R - (R - V) = V
    assert set(np.unique(gained)) <= {0.0, 1.0} and 0 <= value <= 1


def test_a_state_lies_between_two_steps():
    """Uniform over the beginnings of steps: the prompt, and after each separator that something follows."""
    row = [1, 7, 2, 2, 7, 3, 7]
    found = own_rows.random_states(jax.random.key(0), [row] * 3000 + [[], [7], [1, 2]], (7,))
    assert set(found[:3000]) == {0, 2, 5} and found[3000:].tolist() == [0, 0, 0]
    np.testing.assert_allclose([np.mean(found[:3000] == cut) for cut in (0, 2, 5)], 1 / 3, atol=0.03)


@pytest.mark.slow
def test_a_state_is_worth_what_the_reference_makes_of_it(step, monkeypatch):
    """One token per row is trained on, the one after the state; its reward is the mean of the completions."""
    plain, spec = step.plain.judged, dict(fn="experiments.parts.foreign_own:step_completions", at_most=SIZE)
    spec |= dict(replace="group", samples=2)
    with pytest.raises(ValueError, match="step_completions needs a reference policy"):
        step.with_rows(mc=spec)
    with pytest.raises(ValueError, match="samples=0 must be 1 or more"):
        step.with_rows(mc=spec | dict(samples=0))
    whole, drawn = foreign_rows.ForeignRows.__call__, []
    monkeypatch.setattr(foreign_rows.ForeignRows, "__call__", lambda self, *args: whole(self, *args, guide=step.params))
    of_states = foreign_own._rewards_after

    def watched(stage, judged, begins, key, **keywords):
        drawn.append((begins, of_states(stage, judged, begins, key, **keywords)))
        return drawn[-1][1]

    monkeypatch.setattr(foreign_own, "_rewards_after", watched)
    found = step.with_rows(mc=spec).judged
    assert len(drawn) == 2 and all(not begin for begin in drawn[0][0]), "without separators: the prompt"
    np.testing.assert_array_equal(found.result.rewards, (drawn[0][1] + drawn[1][1]) / 2)
    np.testing.assert_array_equal(found.rollout.completion_mask.argmax(axis=1), 0)
    assert (found.rollout.completion_mask.sum(axis=1) == 1).all() and found.completions == plain.completions
    # After all but the last token, the reference makes of a finished answer what one token can make of it.
    ids, _ = selected_rows.sampled_of(plain.rollout)
    monkeypatch.setattr(own_rows, "random_states", lambda key, rows, separators: np.array([len(r) - 1 for r in rows]))
    last = step.with_rows(mc=spec).judged
    assert drawn[-1][0] == [row[:-1] for row in ids]
    lengths = plain.rollout.completion_mask.sum(axis=1)
    np.testing.assert_array_equal(last.rollout.completion_mask.argmax(axis=1), lengths - 1)
    assert (last.rollout.completion_mask.sum(axis=1) == 1).all()


@pytest.mark.slow
def test_the_policy_asks_and_answers_itself(step, monkeypatch):
    """2 of 8 groups propose, 8 proposals; the other groups answer them. All proposals and some answers are given."""
    tokenizer, told = step.setup.task.tokenizer, []

    class Told:
        """The tokenizer, with other texts."""

        def __getattr__(self, name):
            return getattr(tokenizer, name)

        def decode(self, ids):
            told.append(tokenizer.decode(ids))
            place = len(told) - 1
            if place < GROUPS * SIZE:
                return ("1+2", "12+3", "5", "123+4", "4-1", "9+9", "1+1", "7+7")[place % GROUPS]
            return str(3 if place % SIZE else 15)

    setup = step.setup._replace(task=step.setup.task._replace(tokenizer=Told()))
    monkeypatch.setattr(step, "setup", setup)
    memory = foreign_rows.Memory()
    spec = dict(fn="experiments.parts.foreign_self_play:propose_and_solve", at_most=SIZE, replace="group")
    found = step.with_rows(memory, play=spec)
    assert found.metrics["foreign/play/rows"] == GROUPS * SIZE and found.metrics["foreign/play/valid"] == 6 / 8
    assert memory.answers.get("self_play")["successes"] == ["1+2", "12+3", "4-1", "9+9", "1+1", "7+7"]
    # "1+2" is 3: right in three of four; "12+3" is 15: in one; of abduction "4-1" misses 4.
    rewards = [0.25, 0.75, -1.0, -0.5, 0.0, 0.0, 0.0, 0.0]
    np.testing.assert_allclose(found.metrics["foreign/play/proposer_reward"], np.mean(rewards))
    texts = found.judged.completions
    proposing = [row for row in range(GROUPS * SIZE) if texts[row] not in ("3", "15")]
    assert proposing == list(range(2 * SIZE, 4 * SIZE)), "in place of what could not be asked"
    lengths = found.judged.rollout.completion_mask.sum(axis=1)
    expected = self_play.whitened_by_role(np.array(rewards), lengths[proposing], np.repeat([0, 1], SIZE))
    np.testing.assert_allclose(found.judged.result.rewards[proposing], expected, rtol=1e-5)


@pytest.mark.slow
def test_the_spare_question_is_a_deduction(step, monkeypatch):
    """No proposal can be asked: 6 groups answer "1+1=", which is a deduction, whatever was to be proposed."""
    tokenizer, seen, whitened = step.setup.task.tokenizer, [], self_play.whitened_by_role

    class Told:
        def __getattr__(self, name):
            return getattr(tokenizer, name)

        def decode(self, ids):
            return "5"

    def watched(rewards, lengths, roles):
        seen.append(roles)
        return whitened(rewards, lengths, roles)

    monkeypatch.setattr(step, "setup", step.setup._replace(task=step.setup.task._replace(tokenizer=Told())))
    monkeypatch.setattr(self_play, "whitened_by_role", watched)
    step.with_rows(play=dict(fn="experiments.parts.foreign_self_play:propose_and_solve", at_most=SIZE, replace="group"))
    assert seen[0].tolist() == [2] * SIZE + [3] * SIZE + [0] * ((GROUPS - 2) * SIZE)


@pytest.mark.slow
def test_the_policy_asks_and_answers_programs(step, monkeypatch):
    """8 proposals, of deduction and of induction about the seed; all texts are given, the tokens are the policy's."""
    proposals = ["def f(x):return x+1#1", "def f(x):return 2*x#4", "1", "def f(x):return 1/x#0"]
    proposals += ["1;2;3;4", "1;2;3", "5;6;7;8", "0;0;0;0"]
    right = ["2", "8", "1", "1", *["def f(x):return x"] * 4]
    real, told = foreign_program_play.draw, []

    def draw(stage, judged, prompts, fold):
        told.append(prompts)
        rollout, records, texts = real(stage, judged, ["1+1="] * GROUPS, fold)
        if fold == 3:
            return rollout, records, proposals + texts[GROUPS:]
        return rollout, records, ["77" if n % SIZE > n // SIZE else right[n // SIZE] for n in range(len(texts))]

    monkeypatch.setattr(foreign_program_play, "draw", draw)
    monkeypatch.setattr(program_play, "KINDS", ("deduction", "induction"))
    spec = dict(fn="experiments.parts.foreign_program_play:propose_programs", at_most=SIZE, replace="group")
    memory = foreign_rows.Memory()
    monkeypatch.setattr(foreign_program_play.jax.random, "randint", lambda key, shape, *_: np.zeros(shape, int))
    found = step.with_rows(memory, play=spec)
    assert told[0][:2] == ["deduce? def f(x):return x#1\n", "inputs? def f(x):return x\n"]
    spare = "def f(x):return x#1="
    shown = [f"{proposals[0]}=", f"{proposals[1]}=", spare, spare, "1=1;2=2:", spare, "5=5;6=6:", "0=0;0=0:"]
    assert told[1] == shown and memory.answers.get("program_play")["successes"] == proposals[:2]
    # Solved by one and by two of four; always by four.
    rewards = np.array([0.75, 0.5, -1, -1, -0.5, -1, -0.5, -0.5])
    np.testing.assert_allclose(found.metrics["foreign/play/proposer_reward"], rewards.mean())
    assert found.metrics["foreign/play/valid"] == 5 / 8
    proposing = slice(2 * SIZE, 4 * SIZE)  # in place of the first that could not be asked
    assert found.judged.completions[proposing] == proposals
    lengths = found.judged.rollout.completion_mask.sum(axis=1)[proposing]
    expected = self_play.whitened_by_role(rewards, lengths, np.repeat([0, 1], SIZE))
    np.testing.assert_allclose(found.judged.result.rewards[proposing], expected, rtol=1e-5)


def test_self_play_needs_whole_groups_of_groups(step):
    spec = dict(fn="experiments.parts.foreign_self_play:propose_and_solve", at_most=SIZE, share=0.5, replace="group")
    with pytest.raises(ValueError, match="foreign.play: propose_and_solve takes all groups"):
        step.with_rows(play=spec)


@pytest.mark.slow
@pytest.mark.usefixtures("kept_signals", "no_evaluations")
def test_a_run_has_both(tmp_path):
    fields = dict(train__steps=2, eval__every=100, checkpoint__every=100)
    config = small_config(tmp_path, reward__function=reward(small.has_a_seven), **fields)
    with config.unlocked():
        config.rollout.prompt_buckets = (16,)
        play = dict(fn="experiments.parts.foreign_self_play:propose_and_solve", at_most=SIZE, replace="group")
        config.foreign = dict(a=PROGRESS, b=VERIFICATION, c=play)
    grpo.run(config, tmp_path / "run")
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    rows = [row for row in rows if row["step"]]
    assert len(rows) == 2 and all(np.isfinite(row["loss"]) and "foreign/a/regret" in row for row in rows)
    assert sum(row["foreign/b/rows"] for row in rows) > 0 and rows[-1]["foreign/c/rows"] == GROUPS * SIZE
