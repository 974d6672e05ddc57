"""experiments.parts.judges: what each kind of judge says about rows, and the rows that it refuses."""

import json
import pathlib
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ml_collections import ConfigDict

from experiments.parts import judges
from experiments.parts.judges import base, certainty, generative, language_models, learning, reward_models
from experiments.parts.judges.trained import RewardModel, load_reward_model
from experiments.parts.setup import make_setup
from rl_jax.core.types import Rollout, TokenBatch
from rl_jax.credit import ensembles
from rl_jax.tasks.arithmetic import ALPHABET
from rl_jax.tokenizers import ByteTokenizer, CharTokenizer, PlainPrompts
from rl_jax.training.scoring import make_score
from tests import tiny_tokenizers
from tests.experiments.judge_runs import model_run, reward_run
from tests.experiments.shared_programs import share_programs, sharing  # noqa: F401  fixtures
from tests.experiments.small import config as small_config

PROMPTS = ("1+2=", "1+2=", "30-4=", "30-4=")
COMPLETIONS = ("3", "4=5", "26", "2=2=7")
LENGTH = 8


def judged_rows(tokenizer, prompts=PROMPTS, completions=COMPLETIONS, infos=None, cut=()):
    """Rows as judging.judge has them; the rows `cut` have no EOS."""
    pairs = []
    for place, (prompt, text) in enumerate(zip(prompts, completions, strict=True)):
        pairs.append((tokenizer.encode(prompt, bos=True), tokenizer.encode(text, eos=place not in cut)))
    batch = base.lay_out(pairs, tokenizer, LENGTH)
    mask = np.arange(LENGTH)[None, :] < np.array([len(ids) for _, ids in pairs])[:, None]
    blank, truncated = np.zeros(mask.shape, np.float32), np.isin(np.arange(len(pairs)), cut)
    rollout = Rollout(batch, mask, blank, blank, ~truncated, truncated)
    infos = infos or [{}] * len(prompts)
    records = [{"prompt": p, "completion": "3", "info": json.dumps(i)} for p, i in zip(prompts, infos, strict=True)]
    return types.SimpleNamespace(rollout=rollout, records=records, completions=list(completions))


@pytest.fixture(scope="module")
def setup(tmp_path_factory):
    config = small_config(tmp_path_factory.mktemp("task")).copy_and_resolve_references().unlock()
    config.rollout.update(completion_length=LENGTH, prompt_buckets=(16,))
    return make_setup(config)


@pytest.fixture(scope="module")
def runs(tmp_path_factory, setup):
    """name -> folder of a run with random params and the task's alphabet."""
    folder = tmp_path_factory.mktemp("runs")
    return {
        "rm": reward_run(folder / "rm", ALPHABET),
        "other": reward_run(folder / "other", ALPHABET, seed=1, members=2),
        "steps": reward_run(folder / "steps", ALPHABET, reads="steps", scale=1.0),
        "implicit": reward_run(folder / "implicit", ALPHABET, reads="log_ratio"),
        "foreign": reward_run(folder / "foreign", ALPHABET + "#"),
        "lm": model_run(folder / "lm", setup.config, seed=3),
    }


@pytest.mark.slow
def test_a_reward_model_reads_the_sampled_ids(setup, runs):
    rows, trained = judged_rows(setup.task.tokenizer), load_reward_model(runs["rm"])
    verdict = judges.reward_model(setup, path=runs["rm"], batch_size=3)(rows)
    texts = trained.score_texts(PROMPTS, COMPLETIONS)
    assert np.ptp(texts) > 0.1 and verdict.token_rewards is None and verdict.components == {}
    np.testing.assert_allclose(verdict.rewards, texts, rtol=1e-4, atol=1e-5)
    again = judges.reward_model(setup, path=runs["rm"], rows="texts")(rows)
    np.testing.assert_allclose(again.rewards, texts, rtol=1e-4, atol=1e-5)
    # The ids of a truncated row have no EOS, its text gets one.
    cut = judges.reward_model(setup, path=runs["rm"])(judged_rows(setup.task.tokenizer, cut=(1,)))
    assert np.flatnonzero(np.abs(cut.rewards - texts) > 1e-4).tolist() == [1]


@pytest.mark.slow
def test_a_judge_is_spread_over_the_mesh_of_the_run(setup, runs):
    config = setup.config.copy_and_resolve_references().unlock()
    config.mesh = "data:2,fsdp:2"
    spread, rows = make_setup(config), judged_rows(setup.task.tokenizer)  # 4 rows; batches of 3 become 4
    alone, together = (judges.reward_model(s, path=runs["rm"], batch_size=3, retrain_every=1) for s in (setup, spread))
    np.testing.assert_allclose(together(rows).rewards, alone(rows).rewards, rtol=1e-4, atol=1e-5)
    assert together.learn(rows, sevens(rows))["loss"] == pytest.approx(
        alone.learn(rows, sevens(rows))["loss"], rel=1e-3
    )
    alone, together = (judges.log_ratio(s, path=runs["implicit"], batch_size=2) for s in (setup, spread))
    np.testing.assert_allclose(together(rows).token_rewards, alone(rows).token_rewards, rtol=1e-3, atol=1e-4)
    assert generative.make_ask(spread, runs["lm"], "x", 4, 2)(["1+2="]) == generative.make_ask(
        setup, runs["lm"], "x", 4, 2
    )(["1+2="])


@pytest.mark.slow
def test_the_judge_may_see_what_the_policy_does_not(setup, runs):
    infos = [{}, {"judge_prompt": "9-9-9="}, {}, {}]
    found = judges.reward_model(setup, path=runs["rm"])(judged_rows(setup.task.tokenizer, infos=infos)).rewards
    prompts = [PROMPTS[0], "9-9-9=", *PROMPTS[2:]]
    np.testing.assert_allclose(
        found, load_reward_model(runs["rm"]).score_texts(prompts, COMPLETIONS), rtol=1e-4, atol=1e-5
    )


def test_a_model_with_another_tokenizer_reads_chats_as_chats():
    """Red before: a reward model that was trained on chats judged the text of their last message."""
    chat = [{"role": "system", "content": "Brief."}, {"role": "user", "content": "1+2="}]
    rows = judged_rows(CharTokenizer(ALPHABET), infos=[{}, {"judge_prompt": "9="}, {}, {}])
    rows.records[0]["messages"] = rows.records[1]["messages"] = chat
    plain, asked = PlainPrompts(ByteTokenizer()), []
    model = types.SimpleNamespace(tokenizer=plain, encode=lambda p, r: asked.extend(p), members=lambda *_: None)
    reward_models._RewardModel(model, "texts", 4, None)._rows(rows)
    assert asked == [chat, "9=", *PROMPTS[2:]]
    before = [ids for ids, _ in language_models.texts_to_score(rows, plain, "completion", "", LENGTH)]
    assert before == [plain.encode(prompt, bos=True) for prompt in asked]


@pytest.mark.slow
def test_several_reward_models_are_an_ensemble(setup, runs):
    rows = judged_rows(setup.task.tokenizer)
    members = [load_reward_model(runs["rm"]).score_texts(PROMPTS, COMPLETIONS)] * 2
    both = f"{runs['rm']},{runs['rm']}"
    found = judges.reward_model(setup, path=both, combine=dict(fn="worst_case"))(rows)
    np.testing.assert_allclose(found.rewards, members[0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found.components["disagreement"], 0, atol=1e-5)
    (pathlib.Path(runs["rm"]) / "rewards.json").write_text(json.dumps(dict(means=[2.0], stds=[0.5])))
    apart = judges.reward_model(setup, path=both, combine=dict(fn="worst_case"), standardize=True)(rows)
    np.testing.assert_allclose(apart.rewards, (members[0] - 2.0) / 0.5, rtol=1e-4, atol=1e-4)
    two = judges.reward_model(setup, path=[runs["other"]], combine=dict(fn="uncertainty_weighted", coef=0.5))(rows)
    model = load_reward_model(runs["other"])
    heads = model._replace(combine=lambda members: members).score_texts(PROMPTS, COMPLETIONS)
    expected = heads.mean(1) - 0.5 * heads.var(1, ddof=1)
    np.testing.assert_allclose(two.rewards, expected, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(two.components["disagreement"], heads.std(1), rtol=1e-3, atol=1e-4)


def test_an_ensemble_that_couples_rows_sees_all_rows_of_a_call():
    """Red before: max_min chose its member anew in each batch of the forward passes, with the rows that fill up one."""
    values = np.array([[0, 1], [0, 1], [9, 1], [9, 1], [9, 1]], np.int32)
    read = lambda params, batch: batch.tokens.astype(jnp.float32)  # noqa: E731
    config = ConfigDict(dict(eval=dict(batch_size=2)))
    model = RewardModel(lambda *given: ensembles.max_min(read(*given)), read, {}, None, config, None, ensembles.max_min)
    assert model.score_rows(TokenBatch(values, values, values)).tolist() == [1, 1, 1, 1, 1]


def test_an_implicit_model_learns_nothing_from_a_row_whose_verifier_failed():
    """Red before: such a row was a wrong answer to learn from."""
    score = lambda params, rows: types.SimpleNamespace(log_probs=params)  # noqa: E731
    ratios, mask = jnp.array([[0.5, 0.1], [0.3, -0.2], [-0.4, 0.2]]), jnp.ones((3, 2), bool)
    loss = language_models.outcome_loss(score, 1.0)
    grads = jax.grad(lambda params, labels, known: loss(params, (None, known, 0 * ratios, labels))[0].value())
    found = grads(ratios, jnp.array([1.0, jnp.nan, 0.0]), mask)
    expected = jax.grad(lambda x: -jnp.log(jax.nn.sigmoid(x[0].sum())) / 2 - jnp.log(jax.nn.sigmoid(-x[2].sum())) / 2)
    np.testing.assert_allclose(found, expected(ratios), rtol=1e-5)


def test_a_run_of_another_program_is_no_reward_model(tmp_path):
    (tmp_path / "config.json").write_text('{"program": "grpo", "algorithm": {"kl_coef": 0.0}}')
    (tmp_path / "final.json").write_text("{}")
    with pytest.raises(ValueError, match="is a run of experiments.grpo: give one of experiments.reward_model"):
        load_reward_model(tmp_path)


@pytest.mark.slow
def test_another_tokenizer_is_read_as_texts_or_refused(setup, runs):
    rows = judged_rows(setup.task.tokenizer)
    found = judges.reward_model(setup, path=runs["foreign"])(rows).rewards
    expected = load_reward_model(runs["foreign"]).score_texts(PROMPTS, COMPLETIONS)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="foreign has another tokenizer than the policy.*rows='texts'"):
        judges.reward_model(setup, path=runs["foreign"], rows="tokens")
    with pytest.raises(ValueError, match="rows='words' is none of"):
        judges.reward_model(setup, path=runs["rm"], rows="words")
    with pytest.raises(ValueError, match="path='': give the workdir"):
        judges.reward_model(setup, path="")
    with pytest.raises(FileNotFoundError, match="nowhere has no finished run: train"):
        judges.reward_model(setup, path="nowhere")


def test_steps_end_at_separators_and_at_the_end():
    tokenizer = types.SimpleNamespace(decode=lambda ids: "".join("..xa\n"[i] for i in ids))
    a, line = 3, 4
    rows = [[a, line, a, a, line], [a, a], [], [line, a]]
    found, is_open = reward_models.step_ends(rows, tokenizer, ("\n",))
    assert found.shape == (4, reward_models.MIN_STEPS) and is_open.tolist() == [False, True, False, True]
    assert [row[row >= 0].tolist() for row in found] == [[1, 4], [1], [], [0, 1]]
    assert reward_models.step_ends([[a, line, line, a]], tokenizer, ("\n\n",))[0][0, :2].tolist() == [2, 3]


@pytest.mark.slow
def test_a_process_reward_model_puts_step_rewards_on_tokens(setup, runs):
    tokenizer = setup.task.tokenizer
    rows = judged_rows(tokenizer)
    found = judges.process_reward_model(setup, path=runs["steps"], separator="=")(rows)
    ends = [(0,), (1, 2), (1,), (1, 3, 4)]  # "3", "4=|5", "26", "2=|2=|7"
    assert [tuple(np.flatnonzero(row)) for row in found.step_ends] == ends
    assert not found.token_rewards[~found.step_ends].any() and (found.token_rewards[found.step_ends] > 0).all()
    assert found.rewards is None and found.components["steps"].tolist() == [1, 2, 1, 3]
    lowest = [row[list(e)].min() for row, e in zip(found.token_rewards, ends, strict=True)]
    np.testing.assert_allclose(found.components["solution"], lowest, rtol=1e-5)
    # The probability is read at the step's own token: another ending changes nothing before it.
    other = judged_rows(tokenizer, completions=(*COMPLETIONS[:3], "2=2=9"))
    again = judges.process_reward_model(setup, path=runs["steps"], separator="=")(other).token_rewards
    np.testing.assert_allclose(again[3, :4], found.token_rewards[3, :4], rtol=1e-5)
    assert abs(again[3, 4] - found.token_rewards[3, 4]) > 1e-6
    # An open last step is read after the separator that the model was trained to read at.
    whole = judged_rows(tokenizer, completions=(*COMPLETIONS[:3], "2=2=7="))
    closed = judges.process_reward_model(setup, path=runs["steps"], separator="=")(whole)
    assert np.flatnonzero(closed.step_ends[3]).tolist() == [1, 3, 5]
    np.testing.assert_allclose(closed.token_rewards[3, 5], found.token_rewards[3, 4], rtol=1e-5)
    once = judges.process_reward_model(setup, path=runs["steps"], separator="=", whole=True)(rows)
    assert [tuple(np.flatnonzero(row)) for row in once.step_ends] == [(0,), (2,), (1,), (4,)]
    np.testing.assert_allclose(once.token_rewards[3, 4], found.token_rewards[3, 4], rtol=1e-5)
    transforms = (dict(fn="clip_steps", threshold=0.5), dict(fn="delta_steps"))
    bounded = judges.process_reward_model(setup, path=runs["steps"], separator="=", transforms=transforms)(rows)
    clipped = np.minimum(found.token_rewards[3, list(ends[3])] - 0.5, 0)
    expected = [clipped[0] - clipped[1], clipped[1], 0.0]
    np.testing.assert_allclose(bounded.token_rewards[3, list(ends[3])], expected, atol=1e-6)
    assert (bounded.step_ends == found.step_ends).all(), "a step worth nothing is a step"
    with pytest.raises(ValueError, match="reads 'response': a process reward model is trained with"):
        judges.process_reward_model(setup, path=runs["rm"])
    with pytest.raises(FileNotFoundError, match="no finished run"):
        judges.process_reward_model(setup, path="nowhere")


@pytest.mark.slow
def test_log_ratios_are_token_rewards(setup, runs):
    rows = judged_rows(setup.task.tokenizer)
    found = judges.log_ratio(setup, path=runs["implicit"], beta=0.5)(rows)
    own, model = base.run_of(setup, language_models.pathlib.Path(runs["implicit"]))
    score = jax.jit(make_score(own.model, completion_length=LENGTH))
    batch = jax.tree.map(jax.numpy.asarray, rows.rollout.batch)
    gap = score(model, batch).log_probs - score(own.init_params(), batch).log_probs
    expected = np.where(rows.rollout.completion_mask, 0.5 * gap, 0)
    np.testing.assert_allclose(found.token_rewards, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found.components["log_ratio"], expected.sum(1) / 0.5, rtol=1e-4, atol=1e-4)
    bound = float(np.abs(expected).max() / 2)
    clipped = judges.log_ratio(setup, path=runs["implicit"], beta=0.5, clip=bound)(rows).token_rewards
    np.testing.assert_allclose(clipped, np.clip(expected, -bound, bound), rtol=1e-4, atol=1e-5)
    unit = judges.log_ratio(setup, path=runs["implicit"], normalize=True)(rows).token_rewards
    assert np.abs(np.cumsum(unit[:, ::-1], axis=1)).max() == pytest.approx(1.0, abs=1e-4)
    # RTO's limit: a model that is its own reference adds nothing.
    same = judges.log_ratio(setup, path=runs["lm"], reference=runs["lm"])(rows)
    np.testing.assert_array_equal(same.token_rewards, 0.0)
    with pytest.raises(ValueError, match="another tokenizer.*train it with the policy's tokenizer"):
        judges.log_ratio(setup, path=runs["foreign"])
    with pytest.raises(FileNotFoundError, match="log_ratio.path='nowhere' is neither the workdir of a run"):
        judges.log_ratio(setup, path="nowhere")


@pytest.mark.slow
def test_the_likelihood_of_the_answer_given_the_completion(setup, runs):
    tokenizer = setup.task.tokenizer
    rows = judged_rows(tokenizer, infos=[{"answer": 3}, {"answer": "3"}, {"answer": "26"}, {"answer": "26"}])
    own, params = base.load_run(setup, runs["lm"], "x")

    def by_hand(before, text):
        batch = base.lay_out([(tokenizer.encode(before, bos=True), tokenizer.encode(text))], tokenizer, LENGTH)
        score = make_score(own.model, completion_length=LENGTH)
        return float(jax.jit(score)(params, batch).log_probs[0, : len(text)].mean())

    found = judges.likelihood(setup, path=runs["lm"], answer_length=LENGTH, lead_in="=")(rows).rewards
    texts = [p + c + "=" for p, c in zip(PROMPTS, COMPLETIONS, strict=True)]
    expected = [by_hand(text, answer) for text, answer in zip(texts, ("3", "3", "26", "26"), strict=True)]
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    assert found[0] != found[1], "another completion, another probability of the same answer"
    usual = judges.likelihood(setup, path=runs["lm"], of="completion", reduce="sum")(rows).rewards
    expected = [len(c) * by_hand(p, c) for p, c in zip(PROMPTS, COMPLETIONS, strict=True)]
    np.testing.assert_allclose(usual, expected, rtol=1e-4)
    with pytest.raises(ValueError, match="the record of the prompt '1.2=' has no 'label' in info"):
        judges.likelihood(setup, path=runs["lm"], of="label")(rows)
    with pytest.raises(ValueError, match="reduce='max' is none of sum, mean"):
        judges.likelihood(setup, path=runs["lm"], reduce="max")


@pytest.mark.slow
def test_confidence_is_a_mean_over_the_sampled_tokens(setup, runs):
    tokenizer = setup.task.tokenizer
    rows = judged_rows(tokenizer, cut=(3,))
    own, params = base.load_run(setup, runs["lm"], "x")
    batch, mask = rows.rollout.batch, rows.rollout.completion_mask

    @jax.jit
    def log_probs_of(params):
        hidden = own.model.apply(params, jax.tree.map(jnp.asarray, batch))[:, -LENGTH - 1 : -1]
        return jax.nn.log_softmax(own.model.unembed(params, hidden))

    log_probs = np.asarray(log_probs_of(params), np.float64)
    size = log_probs.shape[-1]
    kl = np.sum((np.log(1 / size) - log_probs) / size, axis=-1)  # of the uniform distribution to p
    negative_entropy = np.sum(np.exp(log_probs) * log_probs, axis=-1)
    for measure, values in (("self_certainty", kl), ("entropy", negative_entropy)):
        found = judges.confidence(setup, path=runs["lm"], measure=measure)(rows).rewards
        expected = [row[live].mean() for row, live in zip(values, mask, strict=True)]
        np.testing.assert_allclose(found, expected, rtol=1e-4)
    by_texts = judges.confidence(setup, path=runs["lm"], rows="texts", batch_size=3)(rows).rewards
    ends = [row[live][:-1].mean() for row, live in zip(kl[:3], mask, strict=False)]  # without the EOS
    np.testing.assert_allclose(by_texts, [*ends, kl[3][mask[3]].mean()], rtol=1e-4)
    with pytest.raises(ValueError, match="confidence.measure='margin' is none of self_certainty, entropy"):
        judges.confidence(setup, path=runs["lm"], measure="margin")


def test_a_certain_model_is_the_limit_of_both_measures():
    uniform, sure = jnp.full((1, 8), -jnp.log(8.0)), jax.nn.log_softmax(jnp.array([[90.0] + [0.0] * 7]))
    np.testing.assert_allclose(certainty.self_certainty(uniform), 0.0, atol=1e-6)
    np.testing.assert_allclose(certainty.negative_entropy(uniform), -np.log(8.0), rtol=1e-6)
    np.testing.assert_allclose(certainty.negative_entropy(sure), 0.0, atol=1e-6)
    assert certainty.self_certainty(sure)[0] > 70


def asked(monkeypatch, answer):
    """Replaces the model that is asked. answer: question -> text. Returns the questions, call by call."""
    calls = []

    def make_ask(*_):
        def ask(texts):
            calls.append(list(texts))
            return [answer(text) for text in texts]

        return ask

    monkeypatch.setattr(generative, "make_ask", make_ask)
    return calls


def test_grades_are_read_cut_and_remembered(setup, monkeypatch):
    said = {"3": " 10.", "4=5": "I say 99", "26": "none", "2=2=7": "grade: 5.5"}
    calls = asked(monkeypatch, lambda text: said[text.split("|")[1]])
    judge = judges.pointwise(setup, path="", template="{prompt}|{completion}|{answer} {odd}", fallback=-1.0)
    rows = judged_rows(setup.task.tokenizer, infos=[{"answer": "{completion}"}] * 4)
    found = judge(rows)
    np.testing.assert_allclose(found.rewards, [1.0, 1.0, -1.0, 0.5])
    assert found.components["unparsed"].tolist() == [0, 0, 1, 0]
    assert calls[0][0] == "1+2=|3|{completion} {odd}", "a text is not filled in twice"
    judge(rows)
    assert len(calls) == 1, "asked before"
    with pytest.raises(ValueError, match="low=5 must be below high=1"):
        judges.pointwise(setup, path="", low=5, high=1)


def test_quoted_passages_are_rewards_on_their_tokens(setup, monkeypatch):
    said = {"3": "nothing", "4=5": "GOOD: 4=\nPOOR: 9", "26": "POOR: 26 ", "2=2=7": "POOR: =2\nGOOD: 2=2\nGOOD: 7"}
    asked(monkeypatch, lambda text: said[text.split("|")[1]])
    judge = judges.spans(setup, path="", template="{prompt}|{completion}", poor=-0.5)
    found = judge(judged_rows(setup.task.tokenizer))
    expected = [[0] * 5, [1, 1, 0, 0, 0], [-0.5, -0.5, 0, 0, 0], [1, -0.5, -0.5, 0, 1]]
    np.testing.assert_array_equal(found.token_rewards[:, :5], expected)
    assert not found.token_rewards[:, 5:].any() and found.rewards is None
    assert found.components["unparsed"].tolist() == [1, 0, 0, 0]
    assert found.components["unfound"].tolist() == [0, 1, 0, 0]


def test_pairs_are_compared_in_both_orders(setup, monkeypatch):
    def longer(text):
        first, second = text.split("|")[1:]
        return "?" if len(first) == len(second) else " B" if len(second) > len(first) else " A"

    template = "{prompt}|{first}|{second}"
    calls = asked(monkeypatch, longer)
    rows = judged_rows(setup.task.tokenizer)
    found = judges.pairwise(setup, path="", template=template)(rows)
    np.testing.assert_allclose(found.rewards, [0, 1, 0, 1])
    assert len(calls[0]) == 4 and not found.components["unparsed"].any()  # each pair is asked from both sides once
    asked(monkeypatch, lambda text: "A")  # a judge that likes the first place
    biased = judges.pairwise(setup, path="", template=template)(rows)
    np.testing.assert_allclose(biased.rewards, 0.5)
    once = judges.pairwise(setup, path="", template=template, swap=False)(rows)
    np.testing.assert_allclose(once.rewards, 1.0)
    asked(monkeypatch, longer)
    same = judges.pairwise(setup, path="", template=template, against="record")(rows)
    np.testing.assert_allclose(same.rewards, [0.5, 1, 1, 1])  # the record's own completion is "3"
    assert same.components["unparsed"].tolist() == [1, 0, 0, 0]
    alone = judges.pairwise(setup, path="")(judged_rows(setup.task.tokenizer, PROMPTS[1:3], COMPLETIONS[1:3]))
    np.testing.assert_array_equal(alone.rewards, 0.5)  # as in an evaluation with one sample per prompt
    asked(monkeypatch, lambda text: "I say A, or: Better: " + longer(text).strip())
    named = judges.pairwise(setup, path="", template=template, pattern=r"Better: ([AB])")(rows)
    np.testing.assert_allclose(named.rewards, found.rewards)
    with pytest.raises(ValueError, match="against='other' is neither"):
        judges.pairwise(setup, path="", against="other")


@pytest.mark.slow
def test_the_asked_model_answers_greedily_whoever_asks_with_it(setup, runs):
    ask = generative.make_ask(setup, runs["lm"], "x", 4, 2)
    together = ask(["1+2=", "44-9=", "7"])
    assert len(together) == 3 and [ask([text])[0] for text in ("1+2=", "44-9=", "7")] == together


# --- Judges that are trained -----------------------------------------------------------------------------------------


def sevens(judged):
    return np.array([text.count("7") for text in judged.completions], np.float32)


def test_the_best_and_the_worst_of_each_prompt_teach(setup):
    rows = judged_rows(setup.task.tokenizer)
    pairs, present = learning.best_and_worst(rows, np.array([0, 2, 1, 1], np.float32), 3)
    assert pairs[:2].tolist() == [[1, 0], [2, 2]] and pairs.shape == (3, 2)
    assert present.tolist() == [[True] * 2, [False] * 2, [False] * 2]  # a tie, and a row that fills up


def test_a_row_without_a_label_is_neither_best_nor_worst(setup):
    rows = judged_rows(setup.task.tokenizer, ["1+2="] * 4)
    for labels, pair, teaches in (([2, 0, 1], [1, 2], True), ([1, 1, 1], [1, 1], False), ([np.nan] * 3, [0, 0], False)):
        pairs, present = learning.best_and_worst(rows, np.array([np.nan, *labels], np.float32), 1)
        assert pairs.tolist() == [pair] and present.tolist() == [[teaches] * 2]


def test_equal_prompts_with_other_answers_are_two_groups(setup):
    """A data set may ask a question twice, and a step may draw both beside each other."""
    infos = [{"answer": "3"}] * 2 + [{"answer": "4"}] * 2
    rows = judged_rows(setup.task.tokenizer, ["1+2="] * 4, ["3", "4", "5", "6"], infos)
    assert base.groups_of(rows) == [range(0, 2), range(2, 4)]
    pairs, present = learning.best_and_worst(rows, np.array([1, 0, 0, 1], np.float32), 1)
    assert pairs.tolist() == [[0, 1], [3, 2]] and present.all()
    assert generative.pairs_of(rows, "group", 1) == [(0, "4"), (1, "3"), (2, "6"), (3, "5")]
    assert base.groups_of(types.SimpleNamespace(records=[])) == []


def test_a_folder_that_is_asked_has_its_own_template_whatever_the_policy_has(setup, tmp_path, monkeypatch):
    chat = tiny_tokenizers.chatml(tmp_path / "chat")
    plain = tiny_tokenizers.mistral(tmp_path / "plain", template=None)
    seen = []
    monkeypatch.setattr(base, "load_run", lambda own, folder, what: seen.append(own.config.model) or (own, {}))
    setup = setup._replace(config=ConfigDict(setup.config.to_dict()))
    setup.config.model.template = {"enable_thinking": False}
    for folder, chosen in ((chat, None), (plain, None), (chat, False), (plain, True)):
        base.load_asked(setup, folder, "x", chosen)
    assert [model.chat for model in seen] == [True, False, False, True]
    assert all(model.template.to_dict() == {} for model in seen) and not setup.config.model.chat
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    base.load_asked(setup, tmp_path / "run", "x")
    assert seen[-1] is setup.config.model
    with pytest.raises(ValueError, match="is a run, which asks as it was trained: leave chat at None"):
        base.load_asked(setup, tmp_path / "run", "x", True)


@pytest.mark.slow
def test_a_retrained_reward_model_learns_the_labels(setup, runs):
    tokenizer, rng = setup.task.tokenizer, np.random.default_rng(0)
    texts = ["".join(rng.choice(list("0123789"), 4)) for _ in range(16)]
    rows = judged_rows(tokenizer, [f"{i // 4}+1=" for i in range(16)], texts)
    judge = judges.reward_model(setup, path=runs["rm"], retrain_every=2, learning_rate=3e-3)
    start = judge(rows).rewards
    np.testing.assert_array_equal(start, judges.reward_model(setup, path=runs["rm"])(rows).rewards)
    assert [judge.learner.due() for _ in range(4)] == [False, True, False, True]
    metrics = [judge.learn(rows, sevens(rows)) for _ in range(30)]
    assert metrics[-1]["accuracy"] == 1.0 and metrics[-1]["loss"] < 0.1 < metrics[0]["loss"]
    assert np.corrcoef(judge(rows).rewards, sevens(rows))[0, 1] > np.corrcoef(start, sevens(rows))[0, 1]
    other = judges.reward_model(setup, path=runs["rm"], retrain_every=2, learning_rate=3e-3)
    other.learner.set_carried(judge.learner.carried())
    np.testing.assert_array_equal(other(rows).rewards, judge(rows).rewards)
    assert judges.reward_model(setup, path=runs["rm"]).learner is None
    with pytest.raises(ValueError, match="log-ratios is trained by the judge log_ratio"):
        judges.reward_model(setup, path=runs["implicit"], retrain_every=1)


@pytest.mark.slow
def test_primes_model_learns_the_outcomes(setup, runs):
    rows = judged_rows(setup.task.tokenizer, completions=("7", "45", "27", "22"))
    options = dict(retrain_every=1, learning_rate=1e-2, train_beta=0.5, reference=runs["lm"])
    judge = judges.log_ratio(setup, path=runs["lm"], **options)
    np.testing.assert_array_equal(judge(rows).token_rewards, 0.0)
    metrics = [judge.learn(rows, sevens(rows)) for _ in range(12)]
    assert metrics[0]["loss"] == pytest.approx(np.log(2), rel=1e-4) and metrics[-1]["loss"] < 0.4
    ratios = judge(rows).components["log_ratio"]
    assert min(ratios[[0, 2]]) > 0 > max(ratios[[1, 3]])
