"""config.foreign: what goes into the groups, with which log-probs, and that a run of all kinds resumes exactly."""

import json
import shutil
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import grpo
from experiments.parts import foreign_kinds, foreign_rows, policy
from experiments.parts.check_config import check
from experiments.parts.clock import Clock
from experiments.parts.foreign_rule import Rule
from experiments.parts.foreign_stage import Candidates, Stage, rephrased
from experiments.parts.judging import Judged
from experiments.parts.rewards import make_rewards
from experiments.parts.sample_groups import Collector
from experiments.parts.setup import make_setup
from rl_jax.core.types import TokenBatch
from rl_jax.credit import CreditRule, rule
from rl_jax.rewards.pool import RewardResult
from rl_jax.selection import foreign_rows as rows_of
from tests.experiments import small
from tests.experiments.shared_programs import share_programs, sharing  # noqa: F401  fixtures
from tests.experiments.small import config as small_config
from tests.experiments.small import kept_signals, no_evaluations, reward  # noqa: F401  a fixture

SIZE, GROUPS, LENGTH = 4, 8, 4


def begins_right(prompt, completion, info):
    """1 if the answer to the whole prompt begins with the right sum."""
    return {"reward": float(completion.startswith(str(info["answer"])))}


class Step:
    """A step of a model without training, which almost never answers right; entries can then act on its rows."""

    def __init__(self, folder):
        self.config = small_config(folder, reward__function=f"{__name__}:begins_right")
        with self.config.unlocked():
            self.config.rollout.prompt_buckets = (8, 12)
        self.setup = make_setup(self.config)
        (programs, state), (_, prompts) = (
            policy.build(self.setup, self.setup.init_params()),
            policy.own_prompts(self.setup),
        )
        self.generate, self.params, self.key = programs.generate, state.params, jax.random.key(3)
        self.pool = make_rewards(self.setup).__enter__()
        self.plain = Collector(self.setup, self.pool, prompts, programs)(self.params, self.key, Clock())

    def with_rows(self, memory=None, plain=None, **entries):
        """The step's rows after the entries have acted."""
        config = self.config.copy_and_resolve_references()
        with config.unlocked():
            config.foreign = entries
        acting = foreign_rows.ForeignRows(
            self.setup._replace(config=config), self.pool, memory or foreign_rows.Memory(), self.generate
        )
        return acting(plain or self.plain, self.params, self.key, Clock())


@pytest.fixture(scope="module")
def step(tmp_path_factory):
    return Step(tmp_path_factory.mktemp("step"))


def fails_on_sums_below_five(prompt, completion, info):
    """An error for some prompts."""
    if info["answer"] < 5:
        raise RuntimeError("a small sum")
    return begins_right(prompt, completion, info)


def texts(judged):
    return [judged.completions[i : i + SIZE] for i in range(0, len(judged.completions), SIZE)]


def answers(judged):
    return [str(json.loads(record["info"])["answer"]) for record in judged.records[::SIZE]]


def completion_tokens(judged):
    return judged.rollout.batch.tokens[:, -LENGTH:]


def test_without_candidates_the_rows_are_the_same(step):
    for spec in (dict(share=0.0), dict(at_most=-1), dict(warmup_steps=1)):
        found = step.with_rows(demo=dict(fn="demonstrations", **spec))
        assert found.judged.completions == step.plain.judged.completions and found.metrics["foreign/rows"] == 0
        same = jax.tree.map(np.array_equal, found.judged.rollout._replace(foreign=None), step.plain.judged.rollout)
        assert all(jax.tree.leaves(same)) and not found.judged.rollout.foreign.any()


def test_a_demonstration_takes_the_place_of_the_worst_row(step):
    found = step.with_rows(demo=dict(fn="demonstrations", at_most=SIZE)).judged
    foreign = found.rollout.foreign.reshape(GROUPS, SIZE)
    assert (foreign.sum(axis=1) == 1).all()
    for group, (text, answer) in enumerate(zip(texts(found), answers(found), strict=True)):
        place = int(foreign[group].argmax())
        rewards = step.plain.judged.result.rewards[group * SIZE : (group + 1) * SIZE]
        assert text[place] == answer and place == SIZE - 1 - int(rewards[::-1].argmin())
    rows = found.rollout.foreign
    np.testing.assert_array_equal(found.result.rewards[rows], 1.0)
    mask = found.rollout.completion_mask[rows]
    np.testing.assert_array_equal(found.rollout.sampled_log_probs[rows], np.where(mask, rows_of.UNKNOWN, 0.0))
    assert found.rollout.finished[rows].all() and not found.rollout.truncated[rows].any()
    np.testing.assert_array_equal(completion_tokens(found)[~rows], completion_tokens(step.plain.judged)[~rows])
    metrics = step.with_rows(demo=dict(fn="demonstrations", at_most=SIZE)).metrics
    assert (metrics["foreign/rows"], metrics["foreign/demo/rows"], metrics["foreign/demo/reward"]) == (8, 8, 1.0)
    assert metrics["foreign/rescued"] == np.mean(step.plain.judged.result.rewards.reshape(-1, SIZE).max(axis=1) == 0)
    assert metrics["foreign/sampled_reward"] == step.plain.judged.result.rewards.mean()


def test_candidates_whose_reward_fails_are_counted(step):
    """By entry: the step's own reward/errors are those of its samples."""
    small_sums = sum(int(answer) < 5 for answer in answers(step.plain.judged))
    assert 0 < small_sums < GROUPS
    failing = step.setup.task._replace(reward_fn=fails_on_sums_below_five)
    with make_rewards(step.setup._replace(task=failing)) as pool:
        own, step.pool = step.pool, pool
        try:
            found = step.with_rows(demo=dict(fn="demonstrations", at_most=SIZE), none=dict(fn="replay", at_most=-1))
        finally:
            step.pool = own
    metrics = found.metrics
    assert (metrics["foreign/demo/errors"], metrics["foreign/demo/timeouts"]) == (small_sums, 0)
    assert (metrics["foreign/none/errors"], metrics["foreign/none/timeouts"]) == (0, 0)
    assert found.judged.result.num_errors == step.plain.judged.result.num_errors == 0


def test_only_the_demonstration_is_left_if_the_rest_is_dropped(step):
    found = step.with_rows(demo=dict(fn="demonstrations", at_most=0, rest="drop")).judged
    failed = step.plain.judged.result.rewards.reshape(-1, SIZE).max(axis=1) <= 0
    live = found.rollout.completion_mask.any(axis=1).reshape(-1, SIZE).sum(axis=1)
    np.testing.assert_array_equal(live, np.where(failed, 1, SIZE))
    assert failed.any()


def test_hints_lead_a_failed_group_to_its_answer(step):
    """After the whole solution as a hint all rows are right; they are rows of the hinted prompt, and wider ones."""
    spec = dict(fn="hints", at_most=0, replace="group", levels=(0.0, 1.0))
    found = step.with_rows(hints=spec)
    judged, placed = found.judged, found.metrics["foreign/hints/rows"]
    assert placed and placed % SIZE == 0 and not judged.rollout.foreign.any()
    assert 0 < found.metrics["foreign/hints/level"] <= 1
    changed = [group for group in range(GROUPS) if texts(judged)[group] != texts(step.plain.judged)[group]]
    assert len(changed) == placed // SIZE
    widths = judged.rollout.batch.segment_ids[:, :-LENGTH].sum(axis=1)
    before = step.plain.judged.rollout.batch.segment_ids[:, :-LENGTH].sum(axis=1)
    for group in changed:
        rows = slice(group * SIZE, (group + 1) * SIZE)
        answer = answers(judged)[group]
        assert any(text.startswith(answer) for text in texts(judged)[group])
        longer = set(widths[rows] - before[rows])
        assert len(longer) == 1 and longer.pop() in (0, len(answer))
        assert judged.result.rewards[rows].max() == 1.0 and (judged.rollout.sampled_log_probs[rows] <= 0).all()
    with pytest.raises(ValueError, match="foreign.hints: a prompt with its hint has .* add a larger one"):
        with step.config.unlocked():
            step.config.rollout.prompt_buckets = (5,)
        try:
            step.with_rows(hints=spec | dict(level=1.0))
        finally:
            step.config.rollout.prompt_buckets = (8, 12)


@pytest.mark.parametrize("in_loss", [True, False])
def test_a_hinted_answer_to_the_prompt_without_the_hint(step, in_loss):
    """Scaf-GRPO: one response of a failed group is replaced; it begins with the hint and is scored as a whole."""
    spec = dict(fn="hints", at_most=SIZE, level=1.0, train_on="original", hint_in_loss=in_loss, only_right=True)
    found = step.with_rows(hints=spec)
    rows = np.flatnonzero(found.judged.rollout.foreign)
    assert len(rows) and found.judged.rollout.batch.tokens.shape == step.plain.judged.rollout.batch.tokens.shape
    tokenizer = step.setup.task.tokenizer
    for row in rows:
        answer = answers(found.judged)[row // SIZE]
        ids = completion_tokens(found.judged)[row]
        text = tokenizer.decode(ids[ids != tokenizer.pad_id].tolist())
        assert text == found.judged.completions[row] and text.startswith(answer)
        mask, hinted = found.judged.rollout.completion_mask[row], len(answer)
        assert mask[:hinted].all() == in_loss and mask[:hinted].any() == in_loss and mask[hinted]
        assert found.judged.rollout.batch.segment_ids[row, -LENGTH:][: hinted + 1].all()
    # As published the old log-probs are the policy's own; those of the draw are kept if asked for.
    assert (found.judged.rollout.sampled_log_probs[rows] >= 0).all()
    drawn = step.with_rows(hints=spec | dict(behavior="drawn")).judged.rollout.sampled_log_probs[rows]
    assert ((drawn < 0) | (drawn == rows_of.UNKNOWN)).any() and (drawn < 0).any()


def test_a_refinement_is_trained_on_as_an_answer_to_the_prompt_alone(step):
    told = dict(fn="right_answer", text="{answer}")
    spec = dict(fn="refinements", at_most=SIZE, critique=told, template="{prompt}{answer}={critique}", behavior="drawn")
    found = step.with_rows(refined=spec)
    rows = np.flatnonzero(found.judged.rollout.foreign)
    assert len(rows) == GROUPS and found.metrics["foreign/refined/rows"] == GROUPS
    width = -LENGTH
    np.testing.assert_array_equal(
        found.judged.rollout.batch.tokens[:, :width], step.plain.judged.rollout.batch.tokens[:, :width]
    )
    assert (found.judged.rollout.sampled_log_probs[rows] <= 0).all()


CRITICISED = []


def noted(answer, info, right):
    """A critique, of which the answer is kept."""
    CRITICISED.append((answer, right))
    return str(len(CRITICISED) % 10)


def test_every_answer_has_its_own_critique_and_refinement(step):
    """Critique-GRPO: G critiques and G refinements of a group, one each, and the best of these is taken."""
    CRITICISED.clear()
    spec = dict(fn="refinements", at_most=SIZE, critique=dict(fn=f"{__name__}:noted"), template="{prompt}{critique}=")
    found = step.with_rows(refined=spec)
    rewards = step.plain.judged.result.rewards
    assert CRITICISED == list(zip(step.plain.judged.completions, (rewards > 0).tolist(), strict=True))
    assert found.judged.rollout.foreign.reshape(GROUPS, SIZE).sum(axis=1).tolist() == [1] * GROUPS


def test_replay_brings_back_own_right_answers_with_their_log_probs(step):
    memory = foreign_rows.Memory()
    right = step.with_rows(demo=dict(fn="demonstrations", at_most=SIZE))  # a step with right answers...
    as_own = right._replace(
        judged=right.judged._replace(
            rollout=right.judged.rollout._replace(
                foreign=None,
                sampled_log_probs=np.where(right.judged.rollout.completion_mask, -0.25, 0.0).astype(np.float32),
            )
        )
    )
    spec = dict(fn="replay", at_most=0, behavior="drawn", size=2)
    first = step.with_rows(memory, plain=as_own, replay=spec)
    assert first.metrics["foreign/rows"] == 0, "there was nothing to replay yet"
    again = foreign_rows.Memory()
    again.restore(json.loads(json.dumps(memory.state())))
    assert again.state() == memory.state() and again.step == 1
    found = step.with_rows(again, replay=spec)
    failed = step.plain.judged.result.rewards.reshape(-1, SIZE).max(axis=1) <= 0
    rows = np.flatnonzero(found.judged.rollout.foreign)
    assert len(rows) == failed.sum() > 0
    for row in rows:
        assert found.judged.completions[row] == answers(found.judged)[row // SIZE]
    mask = found.judged.rollout.completion_mask[rows]
    np.testing.assert_array_equal(found.judged.rollout.sampled_log_probs[rows], np.where(mask, np.float32(-0.25), 0))
    assert {len(entry["successes"]) for entry in again.answers.state().values()} == {1, 2}


def replayed(texts, kept, *, size=2, stops=(), length=4):
    """(a group of these rows, what `replay` finds for it in a memory of such answers); a character is a token."""
    tokenizer = types.SimpleNamespace(eos_id=1, eos_ids=(1,), pad_id=0, decode=lambda ids: bytes(ids).decode())
    ids = [[ord(c) if c != "." else 1 for c in text] for text in texts]
    prompts = TokenBatch(np.full((len(ids), 1), 55, np.int32), *(np.ones((len(ids), 1), np.int32) for _ in range(2)))
    drawn = [[-1.0] * len(row) for row in ids]
    rollout = rows_of.lay_out(prompts, ids, length, pad_id=0, eos_ids=(1,), log_probs=drawn)
    rollout = rollout._replace(foreign=np.zeros(len(ids), bool))
    result = RewardResult(np.zeros(len(ids), np.float32), {}, 0, 0, None)
    judged, memory = Judged(rollout, [{"id": "a"}] * len(ids), texts, result), foreign_rows.Memory()
    for text in kept:
        row = [ord(c) if c != "." else 1 for c in text]
        answer = dict(tokens=row, log_probs=[-0.5] * len(row), reward=1.0, text=text)
        memory.answers.add_success("a", answer, keep=8)
    config = types.SimpleNamespace(
        sample=types.SimpleNamespace(group_size=len(ids)), rollout=types.SimpleNamespace(stop_strings=stops)
    )
    setup = types.SimpleNamespace(config=config, task=types.SimpleNamespace(tokenizer=tokenizer))
    stage = Stage(setup, None, None, None, None, None, memory, 0.0, judged, np.zeros(2, int))
    return judged, foreign_kinds.replay(stage, judged, np.array([True]), size=size)


@pytest.mark.parametrize("only_right", [False, True])
@pytest.mark.parametrize(("kept", "placed"), [(1, 0), (3, 0), (4, 4), (6, 4)])
def test_a_whole_group_is_replaced_by_usable_candidates_only(kept, placed, only_right):
    """A blank, a lone EOS in the place of an answer that is not there, is never trained on."""
    judged, found = replayed(["56."] * 4, [f"8{place}." for place in range(kept)], size=6)
    entry = Rule(replace="group", behavior="drawn", only_right=only_right)
    result, rows = foreign_rows.put_candidates(judged, found, entry, 4, 0)
    assert rows.tolist() == list(range(placed)) and result.rollout.foreign.sum() == placed
    assert result.completions == ([f"8{kept - 1 - place}." for place in range(4)] if placed else ["56."] * 4)
    assert (result.result.rewards == (1.0 if placed else 0.0)).all()


def test_a_whole_group_of_right_answers_only():
    """With only_right one wrong candidate keeps the group; without it all are taken, in their order."""
    judged, _ = replayed(["56."] * 4, [])
    rewards = np.float32([1, 0, 1, 1])
    made = judged._replace(result=judged.result._replace(rewards=rewards))
    found = Candidates(made, np.ones((1, 4), bool), foreign=False)
    for only_right, wanted in ((True, np.zeros(4)), (False, rewards)):
        entry = Rule(replace="group", only_right=only_right)
        result, _ = foreign_rows.put_candidates(judged, found, entry, 4, 0)
        np.testing.assert_array_equal(result.result.rewards, wanted)


def test_a_replayed_answer_that_ended_at_a_stop_string_is_finished():
    """It has no EOS: without a look at its text it would count as cut off, and be shaped as too long."""
    judged, found = replayed(["56."], ["12;", "34", "12."], size=3, stops=(";",))
    rollout = found.judged.rollout
    assert found.judged.completions == ["12.", "34", "12;"]
    assert rollout.finished.tolist() == [True, False, True] and rollout.truncated.tolist() == [False, True, False]
    assert rows_of.sampled_of(rollout) == ([[49, 50, 1], [51, 52], [49, 50, 59]], [[-0.5] * 3, [-0.5] * 2, [-0.5] * 3])


def test_foreign_reaches_shaping_advantage_weights_and_loss(step):
    found = step.with_rows(demo=dict(fn="demonstrations", at_most=SIZE)).judged
    own = np.full(found.rollout.completion_mask.shape, -0.5, np.float32)
    rollout = rows_of.with_own_log_probs(found.rollout, own)
    np.testing.assert_array_equal(rollout.sampled_log_probs[found.rollout.foreign].max(), 0)
    seen = []

    def ask(rewards, *args, foreign):
        seen.append(foreign)
        return rewards

    def weight(mask, *, foreign):
        seen.append(foreign)
        return jnp.ones(mask.shape)

    def shape(rewards, lengths, truncated, key, *, foreign):
        return ask(rewards, foreign=foreign)

    def advantage(rewards, *, foreign):
        return ask(rewards, foreign=foreign)

    chosen = CreditRule(shape=shape, advantage=advantage, token_weight=weight)
    batch = rule.assign(chosen, rollout, found.result.rewards, group_size=SIZE, key=jax.random.key(0))
    assert len(seen) == 3 and all((x == found.rollout.foreign).all() for x in seen)
    np.testing.assert_array_equal(batch.extras["foreign"], found.rollout.foreign)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (dict(fn="hnts"), "foreign.x: experiments.parts.foreign_kinds has no function 'hnts'; it has: .*hints"),
        (dict(fn="hints", at_mots=1), "takes no keyword 'at_mots'"),
        (dict(fn="replay", replace="first"), "foreign.x: replace='first' is none of worst, last, group"),
        (dict(fn="replay", share=2.0), "share=2.0 from 0 to 1"),
        (dict(fn="replay", count=5), "foreign.x.count=5 must be at most sample.group_size=4"),
        (dict(at_most=1), "must be dict\\(fn="),
    ],
)
def test_a_wrong_entry_is_named_before_anything_runs(tmp_path, spec, said):
    config = small_config(tmp_path)
    with config.unlocked():
        config.foreign = dict(x=spec)
    with pytest.raises(ValueError, match=said):
        check(config)


def test_hints_out_of_the_loss_need_padded_rows(tmp_path):
    config = small_config(tmp_path, packing__mode="packed")
    with config.unlocked():
        config.foreign = dict(x=dict(fn="hints", train_on="original", hint_in_loss=False))
    with pytest.raises(ValueError, match="foreign.x.hint_in_loss=False needs packing.mode='padded'"):
        check(config)


def test_a_record_without_a_solution_is_named(step):
    judged = step.plain.judged
    empty = judged._replace(records=[record | {"completion": ""} for record in judged.records])
    for kind in (foreign_kinds.demonstrations, foreign_kinds.hints):
        with pytest.raises(
            ValueError, match="foreign.x: the record of the prompt '.*' has an empty field `completion`"
        ):
            step.with_rows(plain=step.plain._replace(judged=empty), x=dict(fn=kind.__name__, at_most=SIZE))


def test_a_question_is_changed_where_it_stands():
    """A chat's messages are what is encoded, not the text beside them."""
    chat = [dict(role="system", content="Be brief."), dict(role="user", content="2+2?")]
    found = rephrased(dict(prompt="2+2?", messages=chat), lambda text: f"{text} It is even.")
    assert (
        found["messages"] == [chat[0], dict(role="user", content="2+2? It is even.")] and chat[1]["content"] == "2+2?"
    )
    assert rephrased(dict(prompt="2+2?", messages=None), str.upper)["prompt"] == "2+2?".upper()
    with pytest.raises(ValueError, match="has no user's message with a text"):
        rephrased(dict(prompt="x", messages=chat[:1]), str.upper)


def test_advice_is_part_of_the_prompt(step):
    """Hints of a record's own, weak to strong: the answer is trained on without them."""
    judged = step.plain.judged
    with_texts = [r | {"info": json.dumps(json.loads(r["info"]) | {"hints": ["+", "1"]})} for r in judged.records]
    plain = step.plain._replace(judged=judged._replace(records=with_texts))
    spec = dict(
        fn="hints", texts="hints", template="{hint}{prompt}", train_on="original", at_most=SIZE, until_right=False
    )
    found = step.with_rows(plain=plain, hints=spec)
    assert found.metrics["foreign/hints/rows"] == GROUPS and found.metrics["foreign/hints/level"] == 0.5
    width = -LENGTH
    np.testing.assert_array_equal(found.judged.rollout.batch.tokens[:, :width], judged.rollout.batch.tokens[:, :width])
    with pytest.raises(ValueError, match="foreign.hints: no record of the step has hints in its info field 'hints'"):
        step.with_rows(hints=spec)


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.slow
@pytest.mark.usefixtures("kept_signals", "no_evaluations")
def test_a_run_with_all_kinds_resumes_bit_for_bit(tmp_path):
    config = small_config(
        tmp_path, reward__function=reward(small.has_a_seven), checkpoint__every=2, train__minibatches=2
    )
    told = dict(fn="verdict", if_wrong="7", if_right="7")
    with config.unlocked():
        config.rollout.prompt_buckets, config.task.num_train = (16,), 8  # the same prompts in each step
        config.algorithm.behavior_weight = dict(fn="truncated")
        config.foreign = dict(
            a=dict(fn="demonstrations", at_most=0, share=0.5),
            b=dict(fn="hints", at_most=SIZE, share=0.5, level=0.5, until_right=False, replace="group"),
            c=dict(fn="refinements", critique=told, template="{prompt}{answer}={critique}"),
            d=dict(fn="replay", at_most=SIZE, behavior="drawn", replace="last"),
        )
        config.schedules = dict(hint=dict(field="foreign.b.level", fn="linear", start=1.0, end=0.0, steps=2))
    grpo.run(config, tmp_path / "whole")
    rows = read(tmp_path / "whole" / "metrics.jsonl")[1:]
    assert [row["schedule/hint"] for row in rows] == [1.0, 0.5, 0.0, 0.0]
    assert sum(row["foreign/d/rows"] for row in rows) > 0 and sum(row["foreign/a/rows"] for row in rows) > 0
    assert all(np.isfinite(row["loss"]) and row["sampler/ess"] > 0 for row in rows)
    shutil.copytree(tmp_path / "whole", tmp_path / "halves")  # the second half again
    shutil.rmtree(tmp_path / "halves" / "checkpoints" / "4")
    (tmp_path / "halves" / "final.json").unlink()
    grpo.run(config, tmp_path / "halves")
    assert read(tmp_path / "halves" / "metrics.jsonl")[1:] == rows
    assert read(tmp_path / "halves" / "final.json") == read(tmp_path / "whole" / "final.json")
