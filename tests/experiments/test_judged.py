"""configs/preferences/judged.py and its judges: win probabilities, follow-ups, rules, BRPO; and a run with them."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs.experience import crpg
from configs.preferences import judged
from experiments import grpo
from experiments.parts import check_config, judges
from experiments.parts import policy as policy_parts
from experiments.parts.judges import base, generative, voting
from experiments.parts.setup import make_setup
from rl_jax.advantages import paired
from rl_jax.core.violations import PENALTY
from rl_jax.rewards import brevity
from rl_jax.runs.logging import read_jsonl
from rl_jax.training.scoring import make_score
from tests.experiments import small
from tests.experiments.judge_runs import model_run
from tests.experiments.shared_programs import share_programs, sharing  # noqa: F401  fixtures
from tests.experiments.small import kept_signals, no_evaluations  # noqa: F401  fixtures
from tests.experiments.test_judges import COMPLETIONS, LENGTH, PROMPTS, asked, judged_rows


@pytest.fixture(scope="module")
def setup(tmp_path_factory):
    config = small.config(tmp_path_factory.mktemp("task")).copy_and_resolve_references().unlock()
    config.rollout.update(completion_length=LENGTH, prompt_buckets=(16,))
    return make_setup(config)


@pytest.fixture(scope="module")
def lm(tmp_path_factory, setup):
    return model_run(tmp_path_factory.mktemp("lm") / "lm", setup.config, seed=3)


def log_prob(setup, lm, before, text):
    """log p(text | before) of the judge, by one row."""
    own, params = base.load_run(setup, lm, "x")
    tokenizer = own.task.tokenizer
    row = base.lay_out([(tokenizer.encode(before, bos=True), tokenizer.encode(text))], tokenizer, LENGTH)
    scored = jax.jit(make_score(own.model, completion_length=LENGTH))(params, row)
    return np.asarray(scored.log_probs[0, : len(text)], np.float64)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


@pytest.mark.slow
def test_a_win_is_the_mean_of_both_orders(setup, lm):
    rows = judged_rows(setup.task.tokenizer)
    template, labels = "{prompt}{first}-{second}=", ("1", "20")
    found = judges.win_probability(setup, path=lm, template=template, labels=labels)(rows)

    def gap(question):
        return sum(log_prob(setup, lm, question, "1")) - sum(log_prob(setup, lm, question, "20"))

    for row, (prompt, text) in enumerate(zip(PROMPTS, COMPLETIONS, strict=True)):
        forward, backward = gap(f"{prompt}{text}-3="), gap(f"{prompt}3-{text}=")
        np.testing.assert_allclose(found.rewards[row], (sigmoid(forward) + sigmoid(-backward)) / 2, rtol=1e-3)
        np.testing.assert_allclose(found.components["first_place"][row], (forward + backward) / 2, rtol=1e-3, atol=1e-4)
    assert found.rewards[0] == pytest.approx(0.5, abs=1e-6), "its own anchor: the position is worth nothing"
    alone = judged_rows(setup.task.tokenizer, PROMPTS[1:3], COMPLETIONS[1:3])
    among = judges.win_probability(setup, path=lm, template=template, labels=labels, against="group")(alone)
    np.testing.assert_array_equal(among.rewards, 0.5)
    with pytest.raises(ValueError, match="win_probability.against='all' is neither 'group', nor 'bootstrap', nor"):
        judges.win_probability(setup, path=lm, against="all")
    with pytest.raises(ValueError, match="labels=.'A', 'A'. must be two different texts"):
        judges.win_probability(setup, path=lm, labels=("A", "A"))


@pytest.mark.slow
def test_follow_ups_are_weighed_against_each_other(setup, lm):
    rows = judged_rows(setup.task.tokenizer)
    words = dict(positive=("1+1", "2"), negative=("9",), lead_in="=")
    found = judges.follow_up(setup, path=lm, **words)(rows).rewards
    for row, (prompt, text) in enumerate(zip(PROMPTS, COMPLETIONS, strict=True)):
        means = [log_prob(setup, lm, f"{prompt}{text}=", said).mean() for said in ("1+1", "2", "9")]
        np.testing.assert_allclose(found[row], (means[0] + means[1]) / 2 - means[2], rtol=1e-3, atol=1e-5)
    swapped = judges.follow_up(setup, path=lm, positive=("9",), negative=("1+1", "2"), lead_in="=")(rows).rewards
    np.testing.assert_allclose(swapped, -found, rtol=1e-5)
    with pytest.raises(ValueError, match="at least one positive and one negative"):
        judges.follow_up(setup, path=lm, positive=())


@pytest.mark.slow
def test_a_rewriting_judge_rewards_tokens_as_if_it_wrote(setup, lm):
    """Against greedy writing, one token at a time, until it leaves the answer; then the answer is fed."""
    rows = judged_rows(setup.task.tokenizer)
    found = judges.rewrites(setup, path=lm, template="{prompt}{completion}==")(rows)
    own, params = base.load_run(setup, lm, "x")
    tokenizer, mask = own.task.tokenizer, np.asarray(rows.rollout.completion_mask)
    hidden = jax.jit(own.model.apply)
    for row, (prompt, text, ids) in enumerate(zip(PROMPTS, COMPLETIONS, base.sampled_ids(rows), strict=True)):
        before, together = tokenizer.encode(f"{prompt}{text}==", bos=True), True
        for place, token in enumerate(ids):
            width = len(before)
            line = base.TokenBatch(*(np.zeros((1, 48), np.int32) for _ in range(3)))
            line.tokens[0, :width], line.positions[0, :width], line.segment_ids[0, :width] = before, range(width), 1
            says = int(np.argmax(own.model.unembed(params, hidden(params, line)[:, width - 1])))
            together &= says == token
            assert found.token_rewards[row, place] == (1.0 if together else -1.0 * (says != token))
            before = [*before, token]
        assert not found.token_rewards[row, ~mask[row]].any() and found.components["unchanged"][row] == together


def test_the_share_of_rules_that_are_kept(setup, monkeypatch):
    def says(question):
        completion, rule = question.split("|")
        return {"long": "Yes" if len(completion) > 2 else "No", "seven": "Yes." if "7" in completion else "hm"}[rule]

    asked(monkeypatch, says)
    judge = judges.rules(setup, path="", rules=("long", "seven"), template="{completion}|{rule}")
    found = judge(judged_rows(setup.task.tokenizer))
    np.testing.assert_allclose(found.rewards, [0, 0.5, 0, 1])
    np.testing.assert_allclose(found.components["rule_1"], [0, 0, 0, 1])
    np.testing.assert_allclose(found.components["unparsed"], [0.5, 0.5, 0.5, 0])
    with pytest.raises(ValueError, match="rules.rules='long': give a sequence of texts"):
        judges.rules(setup, path="", rules="long")


def test_brpos_reference_is_one_of_the_group_and_has_no_advantage(setup, monkeypatch):
    prompts, texts = ["1+2="] * 4 + ["30-4="] * 4, ["3", "33", "333", "3333", "26", "2", "266", "2666"]
    rows = judged_rows(setup.task.tokenizer, prompts, texts)
    pairs = generative.pairs_of(rows, "bootstrap", 1)
    references = [other for _, other in pairs]
    assert len(pairs) == 6 and len(set(references[:3])) == len(set(references[3:])) == 1
    assert all(texts[row] != other for row, other in pairs) and pairs == generative.pairs_of(rows, "bootstrap", 1)
    both = [judged_rows(setup.task.tokenizer, ["1+2="] * 2, [str(i), "77"]) for i in range(9)]
    chosen = {generative.pairs_of(two, "bootstrap", 1)[0][0] for two in both}
    assert chosen == {0, 1}, "another group, another reference"

    def longer(text):
        first, second = text.split("|")
        return "A" if len(first) > len(second) else "B"

    asked(monkeypatch, longer)
    judge = judges.pairwise(setup, path="", template="{first}|{second}", against="bootstrap")
    wins = judge(rows).rewards
    advantages = np.asarray(paired.brpo(jnp.asarray(wins), group_size=4))
    for group in range(2):
        size = len(references[3 * group])
        expected = [np.sign(len(text) - size) for text in texts[4 * group : 4 * group + 4]]
        np.testing.assert_array_equal(advantages[4 * group : 4 * group + 4], expected)


def test_brpo_needs_no_mean_where_the_judge_cannot_tell():
    """Over all references and all verdicts of an exchangeable judge the advantages of each row add up to 0."""
    total = np.zeros(3)
    for reference in range(3):
        for verdicts in np.ndindex(2, 2):
            wins = np.full(3, 0.5, np.float32)
            wins[[i for i in range(3) if i != reference]] = verdicts
            total += np.asarray(paired.brpo(jnp.asarray(wins), group_size=3))
    np.testing.assert_array_equal(total, 0.0)
    lost = jnp.array([0.5, 1.0, 1.0, 0.5, 1.0, 0.0])
    np.testing.assert_array_equal(paired.brpo(lost, group_size=3), [0, 1, 1, 0, 1, -1])
    np.testing.assert_array_equal(paired.brpo(lost, group_size=3, most=0.9), [0, 0, 0, 0, 1, -1])
    with pytest.raises(ValueError, match="most=0.5 must be above 1/2"):
        paired.brpo(lost, group_size=3, most=0.5)


def test_votes_are_summed_over_samples_and_orders(setup, monkeypatch):
    rows = judged_rows(setup.task.tokenizer)

    def make_votes(*_):
        def ask(texts):
            pairs = [text.split("|") for text in texts]
            return [(f"{len(a)} {len(b)}", "none", f"so {len(a) + 1}, {len(b) + 1}.") for a, b in pairs]

        return ask

    monkeypatch.setattr(voting, "make_votes", make_votes)
    found = judges.graded_votes(setup, path="", template="{first}|{second}", low=0.0, high=4.0)(rows)
    np.testing.assert_allclose(found.rewards, [1.5 / 4, 3.5 / 4, 2.5 / 4, 1.0])  # 5 and 6 are cut to 4
    np.testing.assert_allclose(found.components["unparsed"], 1 / 3)
    alone = judges.graded_votes(setup, path="")(judged_rows(setup.task.tokenizer, PROMPTS[1:3], COMPLETIONS[1:3]))
    np.testing.assert_array_equal(alone.rewards, 0.5)
    with pytest.raises(ValueError, match="votes=0 must be at least 1"):
        judges.graded_votes(setup, path="", votes=0)


@pytest.mark.parametrize(("text", "grades"), [("8 3", (8, 3)), ("A: 7.5, B: 10", (7.5, 10)), ("9", None), ("", None)])
def test_grades_are_the_first_two_numbers(text, grades):
    assert voting.read_grades(text) == grades


def test_more_votes_of_a_noisy_judge_are_right_more_often():
    rng = np.random.default_rng(0)
    said = rng.normal([5.5, 5.0], 2.0, size=(4000, 16, 2))  # the better answer's grade is half a point higher
    right = [np.mean(said[:, :k, 0].sum(axis=1) > said[:, :k, 1].sum(axis=1)) for k in (1, 4, 16)]
    assert right[0] < 0.6 < right[1] < right[2]


@pytest.mark.slow
def test_what_is_sampled_depends_on_the_question_alone(setup, lm):
    ask = voting.make_votes(setup, lm, 3, 1.0, 4)
    together = ask(["1+2=", "44-9="])
    assert [len(x) for x in together] == [3, 3] and len(set(together[0])) > 1
    assert ask(["44-9="]) == together[1:]


# --- The config ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("word", [None, *judged.STAGES, *judged.METHODS])
def test_its_config_can_run(word):
    config = judged.get_config(word)
    check_config.check(config)
    policy_parts.check_choices(config)
    assert json.loads(config.to_json_best_effort()) and config.name.endswith(word or "pairwise_rl")
    assert bool(config.judge) == (word not in judged.STAGES)
    assert ("critic" in config) == (word in (None, "pairwise_rl", "text2grad", "seq2seq_rm"))


def test_a_wrong_answer_gains_nothing_by_being_concise():
    terms = {"right": np.float32([1, 1, 0, 0]), "brief": np.float32([0.0, 50.0, 50.0, -1e4])}
    found = brevity.gated_score(terms, {"right": 1.0, "brief": 0.5}, by="right", score="brief")
    np.testing.assert_allclose(found, [1.25, 1.5, 0.0, 0.0])
    plain = brevity.gated_score(terms, {"right": 1.0, "brief": 0.0}, by="right", score="brief")
    np.testing.assert_array_equal(plain, terms["right"])
    with pytest.raises(ValueError, match="no term short; the terms are brief, right"):
        brevity.gated_score(terms, {}, by="right", score="short")


def test_the_reward_of_conciseness_multiplies_the_outcome():
    """R = R_o [1 + alpha c (s + d)], d = exp(right / G) of the prompt's own group, by a loop."""
    right, logits = np.float32([1, 1, 0, 1, 1, 0, 0, 0]), np.float32([0.0, 2.0, 50.0, -1e4, 0.5, 9.0, 0.0, 1.0])
    texts = ["x"] * 4
    eases = [brevity.ease(texts, terms={"right": right[g : g + 4]}, correct="right") for g in (0, 4)]
    terms = {"right": right, "brief": logits, "ease": np.float32(np.concatenate(eases))}
    named = dict(by="right", score="brief", ease="ease")
    found = brevity.concise_reward(terms, {"right": 2.0}, **named, alpha=0.3, anneal=0.7)
    for row in range(8):
        group = right[4 * (row // 4) :][:4]
        concise = 1 / (1 + np.exp(min(-float(logits[row]), 700.0)))
        by_hand = 2 * right[row] * (1 + 0.3 * concise * (0.7 + np.exp(sum(group) / 4)))
        np.testing.assert_allclose(found[row], by_hand, rtol=1e-5)
    np.testing.assert_array_equal(found[[2, 5, 6, 7]], 0.0)
    plain = brevity.concise_reward(terms, {"right": 1.0}, **named, alpha=0.0)
    np.testing.assert_array_equal(plain, right)
    with pytest.raises(ValueError, match="no term x; the terms are brief, ease, right"):
        brevity.concise_reward(terms, {}, by="right", score="x", ease="ease")
    with pytest.raises(ValueError, match="correct='x' is no term; the terms are right"):
        brevity.ease(texts, terms={"right": right[:4]}, correct="x")


def test_one_word_at_a_time():
    with pytest.raises(ValueError, match="one stage or method, not 2: flr, letter"):
        judged.get_config("flr,letter")


@pytest.mark.slow
@pytest.mark.usefixtures("kept_signals", "no_evaluations")
def test_they_run(tmp_path, lm):
    """A step of GRPO on three of the judges at once, one of them CGPO's constraint, with CRPG's advantage."""
    config, constrained = small.config(tmp_path, train__steps=1, eval__every=100), crpg.get_config("smoke")
    texts = dict(template="{first}{second}=", labels=("1", "2"), against="bootstrap")
    with config.unlocked():
        config.judge = dict(
            wins=dict(fn="win_probability", path=lm, **texts),
            user=dict(fn="follow_up", path=lm, positive=("1",), negative=("2",), lead_in="=", weight=0.0),
            rules=dict(fn="rules", path=lm, rules=("1", "2"), template="{completion}={rule}", weight=0.0),
        )
        config.reward.compose = dict(fn=constrained.reward.compose.fn, by=("rules",))
        config.sample.references = constrained.sample.references
        for name in ("advantage", "surrogate", "aggregate"):
            config.algorithm[name] = constrained.algorithm[name]
    grpo.run(config, tmp_path / "run")
    (row,) = [row for row in read_jsonl(tmp_path / "run" / "metrics.jsonl") if row["step"]]
    assert 0 < row["reward/wins"] < 1 and row["reward/user"] != 0 and row["reward/rules"] == 0.0
    assert row["reward/mean"] == pytest.approx(row["reward/wins"] - PENALTY, rel=1e-5), "none says Yes: all violate"
    assert row["reward/references"] < -PENALTY / 2 and np.isfinite(row["loss"])
