"""experiments.masked_diffusion: each objective learns a toy world, hints rescue groups, a run resumes bit for bit."""

import json
import types

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from configs import masked_diffusion as configs
from experiments import masked_diffusion
from experiments.parts import masked_groups, masked_lm, masked_steps
from experiments.parts.judging import Judged
from rl_jax.core.types import Model, Rollout, TokenBatch
from rl_jax.rewards.pool import RewardResult
from rl_jax.rollout.lm.engine import fold_rows
from rl_jax.rollout.lm.masked import make_masked_generate
from rl_jax.training import checkpoint
from rl_jax.training.step import init_state, make_gradient, make_train_step
from tests.experiments.shared_programs import share_programs, sharing  # noqa: F401  fixtures
from tests.experiments.small import StopAfter, kept_signals  # noqa: F401  a fixture

LENGTH, VOCAB, MASK = 3, 7, 6
TARGET = jnp.array([3, 4, 5])
SGD = optax.sgd(1.0)
PROMPTS = jnp.ones((2, 1), jnp.int32), jnp.ones((2, 1), bool)


def read_answers(params, batch: TokenBatch) -> jax.Array:
    """A linear model: logits of each position from all tokens of the answer."""
    seen = jax.nn.one_hot(batch.tokens[:, -LENGTH:], VOCAB).reshape(len(batch.tokens), -1)
    return jnp.einsum("nf,fcv->ncv", seen, params)


TOY = Model(None, read_answers, lambda params, logits: logits, None, None, None, VOCAB, causal=False)


def toy(words: str, **algorithm) -> types.SimpleNamespace:
    """A Setup of the toy model with configs/masked_diffusion.py:WORDS."""
    config = configs.get_config(words)
    config.algorithm.update(algorithm)
    return types.SimpleNamespace(
        config=config,
        model=TOY,
        mesh=None,
        task=types.SimpleNamespace(tokenizer=types.SimpleNamespace(mask_id=MASK)),
    )


def zeros() -> jax.Array:
    return jnp.zeros((LENGTH * VOCAB, LENGTH, VOCAB))


def make_learn(words: str, steps: int = 30):
    """learn(seed, sign) -> mean reward of each step, [steps]. sign -1 is a loss with the wrong sign."""
    setup = toy(words)
    generate = make_masked_generate(
        TOY, mask_id=MASK, completion_length=LENGTH, steps=3, block_length=3, group_size=8, eos_ids=()
    )
    prepare, optimizer = masked_steps.make_prepare(setup), optax.adam(0.1)
    train_step = make_train_step(masked_steps.make_loss(setup), optimizer)

    def step(state, key):
        sample_key, update_key = jax.random.split(key)
        rollout = generate(state.params, *PROMPTS, sample_key)
        rewards = jnp.mean(rollout.batch.tokens[:, -LENGTH:] == TARGET[None], axis=1, dtype=jnp.float32)
        hinted = jnp.zeros_like(rollout.completion_mask)
        arrays = (rollout.batch, rollout.completion_mask, hinted, rewards * state.trackers)
        rows, _ = prepare(state.params, *arrays, update_key)
        return train_step(state, rows)[0], jnp.mean(rewards)

    def learn(seed, sign):
        key = jax.random.key(seed)
        return jax.lax.scan(step, init_state(zeros(), optimizer, key, sign), jax.random.split(key, steps))[1]

    return learn


@pytest.mark.parametrize("words", ["", "diffu_grpo"])  # elbo has the gradient of bgpo: the test below
def test_an_objective_learns_and_with_the_wrong_sign_unlearns(words):
    seeds, signs = jnp.array([0, 1, 2] * 2), jnp.array([1.0, 1.0, 1.0, -1.0, -1.0, -1.0])
    rewards = np.asarray(jax.jit(jax.vmap(make_learn(words)))(seeds, signs))
    assert np.all(rewards[:, 0] < 0.35)  # a sixth by chance
    assert np.all(rewards[:3, -5:].mean(1) > 0.9), rewards[:3, -5:].mean(1)
    assert np.all(rewards[3:, -5:].mean(1) < 0.05), rewards[3:, -5:].mean(1)


@pytest.fixture(scope="module")
def answers():
    """(params, what prepare takes) of 16 answers, with rewards of both kinds in each group and two hinted tokens."""
    rng = np.random.default_rng(0)
    tokens = rng.integers(1, MASK, (16, 1 + LENGTH)).astype(np.int32)
    batch = TokenBatch(tokens, np.tile(np.arange(4, dtype=np.int32), (16, 1)), np.ones_like(tokens))
    hinted = np.zeros((16, LENGTH), bool)
    hinted[0, :2] = True
    params = rng.normal(0.0, 1.0, (LENGTH * VOCAB, LENGTH, VOCAB)).astype(np.float32)
    return params, (batch, np.ones((16, LENGTH), bool), hinted, (np.arange(16) % 3 == 0).astype(np.float32))


def test_bgpo_has_the_gradient_of_the_elbo_on_policy_and_a_row_per_draw(answers):
    params, arrays = answers
    setups = [toy(words, samples=2) for words in ("", "elbo")]

    @jax.jit
    def gradients(params, arrays, key):
        found = []
        for setup in setups:
            rows, _ = masked_steps.make_prepare(setup)(params, *arrays, key)
            gradient, means = make_gradient(masked_steps.make_loss(setup))(params, rows)
            found.append((gradient / means["loss"].count, means["ratio/mean"].value(), rows.weights))
        return found

    (bgpo, ratio, flat), (elbo, _, whole) = gradients(params, arrays, jax.random.key(5))
    assert flat.shape == (32, 1) and whole.shape == (16, 2) and float(ratio) == pytest.approx(1.0, abs=1e-5)
    np.testing.assert_allclose(bgpo, elbo, atol=1e-6)
    assert np.abs(bgpo).max() > 1e-3


@pytest.mark.slow
def test_micro_batches_change_no_score_and_no_update(answers):
    params, arrays = answers
    setups = {words: toy(words, samples=2) for words in ("", "elbo", "diffu_grpo")}

    @jax.jit
    def updated(params, arrays, key):
        prepared = []
        for count in (1, 4):
            setups["elbo"].config.train.update(minibatches=1, micro_batches=count)
            prepared.append(masked_steps.make_prepare(setups["elbo"])(params, *arrays, key))
        rows, found = prepared[0][0], {}
        first = rows._replace(**{name: getattr(rows, name)[:, :1] for name in ("masked", "counted", "old_log_probs")})
        of_objectives = {"": masked_steps.one_draw_per_row(rows), "elbo": rows, "diffu_grpo": first}
        for words, setup in setups.items():
            loss = masked_steps.make_loss(setup)
            state = init_state(0.9 * params, SGD, key)  # not the policy that was scored: the ratios are not 1
            gradient, means = make_gradient(loss)(state.params, of_objectives[words])
            after, _ = make_train_step(loss, SGD, num_micro_batches=4)(state, of_objectives[words])
            found[words] = (gradient / means["loss"].count, state.params - after.params)
        return prepared, found

    (whole, in_parts), found = updated(params, arrays, jax.random.key(5))
    chex.assert_trees_all_close(in_parts, whole, atol=1e-6)
    for words, (gradient, change) in found.items():
        np.testing.assert_allclose(change, gradient, atol=1e-6, err_msg=words)
        assert np.abs(gradient).max() > 1e-3


@pytest.mark.parametrize("words", ["", "elbo", "diffu_grpo"])
def test_the_old_policy_is_scored_in_forwards_of_the_size_of_the_updates(words, answers):
    params, arrays = answers
    setup, rows = toy(words), []  # 2 minibatches of 4 micro-batches
    setup.model = TOY._replace(
        apply=lambda params, batch: rows.append(len(batch.tokens)) or read_answers(params, batch)
    )
    jax.eval_shape(masked_steps.make_prepare(setup), params, *arrays, jax.random.key(5))
    assert rows == [16 * setup.config.algorithm.samples // 8]


def test_hints_are_trained_on_only_where_the_old_policy_was_uncertain(answers):
    params, arrays = answers
    setup = toy("diffu_grpo,igpo")  # every token is masked, once
    prepare, loss = masked_steps.make_prepare(setup), masked_steps.make_loss(setup)
    score = masked_steps.make_masked_score(TOY, mask_id=MASK)

    @jax.jit
    def prepared(params, arrays, key):
        rows, metrics = prepare(params, *arrays, key)
        first = jax.tree.map(lambda x: x[:1], rows)
        entropy = score(params, masked_steps.corrupted(rows.batch, rows.masked, MASK)).entropy
        return rows, metrics, entropy, make_gradient(loss)(params, first)[0]

    rows, metrics, entropy, gradient = prepared(params, arrays, jax.random.key(5))
    uncertain = int(np.argmax(entropy[0, :2]))
    assert rows.counted[0, 0].tolist() == [uncertain == 0, uncertain == 1, True]
    assert np.all(rows.counted[1:]) and float(metrics["hints/trained"]) == 0.5

    of_positions = np.abs(gradient).max((0, 2))  # in the logits of row 0
    assert of_positions[1 - uncertain] == 0.0 and of_positions[uncertain] > 0.0


def test_a_prompt_is_masked_in_part_and_never_its_answer():
    tokens, segments = np.full((50, 12), 3, np.int32), np.ones((50, 12), np.int32)
    segments[:, 0] = 0
    mask = jax.jit(lambda batch, key: masked_steps.mask_prompts(batch, 4, MASK, 0.3, key))
    batch = jax.tree.map(np.asarray, mask(TokenBatch(tokens, tokens, segments), jax.random.key(0)))
    share = np.mean(np.asarray(batch.tokens[:, 1:8]) == MASK)
    assert 0.2 < share < 0.4 and np.all(batch.tokens[:, 8:] == 3) and np.all(batch.tokens[:, 0] == 3)


def test_an_answer_of_a_record_goes_on_with_eos():
    tokens = np.array([[0, 1, 5, 6, 2, 0], [1, 4, 5, 6, 7, 2]], np.int32)
    segments = np.array([[0, 1, 1, 1, 1, 0], [1] * 6], np.int32)
    mask = np.array([[True, True, True, False], [True] * 4])
    fill = jax.jit(lambda batch, mask: masked_lm.filled_up(batch, mask, 2))
    found = jax.tree.map(np.asarray, fill(TokenBatch(tokens, tokens, segments), mask))
    assert found.tokens.tolist() == [[0, 1, 5, 6, 2, 2], [1, 4, 5, 6, 7, 2]]
    assert found.segment_ids.tolist() == [[0, 1, 1, 1, 1, 1], [1] * 6]
    assert found.positions[:, 2:].tolist() == [[1, 2, 3, 4], [2, 3, 4, 5]]


def test_the_warm_start_is_minus_the_elbo_of_the_filled_up_answer_per_token():
    setup = toy("")
    setup.config.rollout.completion_length, setup.config.denoise.block_length, setup.config.denoise.steps = 3, 3, 3
    setup.task.tokenizer.eos_id, setup.task.tokenizer.eos_ids = 2, (2,)
    loss_fn = masked_lm.own(setup).loss_fn
    tokens = np.array([[1, 4, 2, 0], [1, 5, 5, 2]], np.int32)
    batch = TokenBatch(tokens, np.arange(8, dtype=np.int32).reshape(2, 4) % 4, (tokens > 0).astype(np.int32))
    mask = np.array([[True, True, False], [True] * 3])

    @jax.jit
    def losses(seeds):
        biased = zeros().at[..., 2].set(jnp.log(5.0) / LENGTH)  # EOS: 5 of 10
        return [loss_fn(params, (batch, mask, seeds))[0].value() for params in (zeros(), biased)]

    found = np.array([losses(np.array([seed, seed + 50], np.uint32)) for seed in range(50)])
    np.testing.assert_allclose(found[:, 0], np.log(6.0), rtol=1e-5)  # six tokens without the mask, whatever is masked
    # EOS is two of the first row's tokens, filled up, and one of the second's.
    wanted = np.mean([(2 * np.log(2.0) + np.log(10.0)) / 3, (np.log(2.0) + 2 * np.log(10.0)) / 3])
    assert found[:, 1].mean() == pytest.approx(wanted, abs=0.05)


def judged(value: int, size: int = 4) -> Judged:
    """Rows that all hold one number."""
    fill = np.full((size, 2), value)
    rollout = Rollout(TokenBatch(fill, fill, fill), fill > 0, *[fill * 1.0] * 2, fill[:, 0] > 0, fill[:, 0] > 0)
    records = [{"prompt": "1+1=", "completion": ""}] * size
    rewards = np.full(size, value, np.float32)
    return Judged(rollout, records, [str(value)] * size, RewardResult(rewards, {"correct": rewards}, 0, 0, None))


def test_replaced_rows_bring_their_tokens_texts_and_rewards():
    found = masked_groups.replaced(judged(0), judged(1), [0, 2], [3, 1])
    assert found.completions == ["1", "0", "1", "0"] and found.result.rewards.tolist() == [1, 0, 1, 0]
    assert found.result.components["correct"].tolist() == [1, 0, 1, 0]
    assert found.rollout.batch.tokens[:, 0].tolist() == [1, 0, 1, 0]
    failed = RewardResult(np.zeros(4, np.float32), {}, 4, 0, None, np.ones(4, bool))  # all: they have no components
    same = masked_groups.replaced(judged(1), judged(0)._replace(result=failed), [], [])
    assert same.result.components["correct"].tolist() == [1] * 4 and same.result.num_timeouts == 4


def test_the_hinted_answers_have_keys_of_their_own_and_only_those_of_hopeless_groups_are_judged(monkeypatch):
    setup = toy("igpo,smoke")
    setup.config.sample.group_size, setup.config.hints.replaced, keys = 2, 1, []
    setup.config.rollout.completion_length = 2
    setup.config.hints.update(low=1.0, high=1.0)
    tokenizer = types.SimpleNamespace(mask_id=MASK, pad_id=0, eos_ids=(), decode=lambda ids: "".join(map(str, ids)))
    tokenizer.encode_continuation = lambda text, eos: [int(text), int(text)]
    setup.task.tokenizer = tokenizer

    def generate(params, key, given):
        keys.append(key)
        tokens = np.where(given == MASK, 4, given).astype(np.int32)
        whole = np.ones((4, 2), bool)
        return judged(0).rollout._replace(batch=TokenBatch(tokens, tokens, tokens), completion_mask=whole)

    def score(rows):  # the first of each group cannot be scored
        right = np.array([text == r["completion"] * 2 for text, r in zip(rows.completions, rows.records, strict=True)])
        failed = np.arange(len(right)) % 2 == 0
        rewards = np.where(failed, 0, right).astype(np.float32)
        return RewardResult(rewards, {"correct": rewards}, len(right) // 2, len(right), None, failed)

    records = [
        {"prompt": "p", "info": "{}", "index": i, "id": str(i), "completion": text} for i, text in enumerate("45")
    ]
    monkeypatch.setattr(masked_groups, "jit_sampler", lambda setup: generate)
    monkeypatch.setattr(masked_groups, "next", lambda prompts: records, raising=False)
    monkeypatch.setattr(masked_groups, "encode_prompts", lambda setup, records: ())
    monkeypatch.setattr(masked_groups, "to_mesh", lambda setup, x: x)
    setup.config.reward.all_failed = "count"
    prompts = types.SimpleNamespace(feedback=lambda seen: None, metrics=dict)
    clock = types.SimpleNamespace(lap=lambda *args: None)
    answers = masked_groups.Collector(setup, score, prompts)(None, jax.random.key(0), 1, clock)
    # Group 0 is right without a hint; in group 1 the second hinted answer replaces the first.
    assert answers.judged.completions == ["44", "44", "55", "44"]
    assert answers.judged.result.rewards.tolist() == [0, 1, 1, 0] and answers.metrics["hints/rescued"] == 1.0
    assert answers.hinted.tolist() == [[False] * 2, [False] * 2, [True] * 2, [False] * 2]
    of_rows = jax.random.key_data(fold_rows(keys[0], 4)).tolist()
    assert jax.random.key_data(keys[1]).tolist() not in of_rows and len(keys) == 2
    # Of 4 rows 2 were too late and 4 failed; of the 2 hinted rows of the hopeless group 1 and 2.
    assert (answers.metrics["reward/timeouts"], answers.metrics["reward/errors"]) == (3, 6)


@pytest.mark.parametrize(
    ("words", "fields", "said"),
    [
        ("smoke", {"rollout.stop_strings": ("\n",)}, r"rollout.stop_strings=\('\\n',\) must be \(\)"),
        ("smoke", {"sample.memory.last": True}, "sample.memory.last=True must be False"),
        ("igpo,smoke", {"hints.replaced": 4}, "hints.replaced=4 must be below sample.group_size=4"),
    ],
)
def test_what_has_no_meaning_here_is_refused(words, fields, said):
    config = configs.get_config(words)
    config.eval.stop_strings = ("\n",)  # only texts of evaluations are cut
    masked_lm.check(config)
    config.update_from_flattened_dict(fields)
    with pytest.raises(ValueError, match=said):
        masked_lm.check(config)


def small(tmp_path, words="igpo,smoke"):
    config = configs.get_config(words)
    config.model.update(embed_dim=8, head_dim=4, mlp_dim=8)
    config.task.data_dir = str(tmp_path / "data")
    config.sft.update(steps=2, eval_every=2, batch_size=8)
    config.train.update(steps=2, minibatches=1, micro_batches=2)
    config.eval.update(every=1)
    config.checkpoint.every = 1
    # Every chunk of the reference is shown: the hinted answer is right, whatever the model writes behind its EOS.
    config.hints.update(low=1.0, high=1.0, replaced=2, entropy_share=0.5)
    config.log.update(progress=False, tensorboard=False)
    config.reward.num_workers = 0
    return config


def metrics_of(workdir) -> list[dict]:
    return [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.usefixtures("kept_signals")
@pytest.mark.slow
def test_a_run_rescues_groups_that_are_all_wrong_and_resumes_bit_for_bit(tmp_path, monkeypatch):
    masked_diffusion.run(small(tmp_path), tmp_path / "whole")
    rows = metrics_of(tmp_path / "whole")
    assert [row["step"] for row in rows] == [0, 1, 2] and (tmp_path / "whole" / "sft" / "final.json").exists()
    for row in rows[1:]:
        wrong = row["group/all_wrong"]
        assert wrong > 0.5 and row["hints/rescued"] == 1.0 and row["hints/rows"] == pytest.approx(wrong / 2)
        assert row["reward/mean"] >= wrong / 2 and row["advantage/size"] > 0.4  # 2 of 4 right: a signal
        assert 0.0 < row["hints/trained"] < 1.0 and 0.0 <= row["eval/pass@1"] < 0.5
        assert np.isfinite(row["loss"]) and row["grad_norm"] > 0.0
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "StopSignal", StopAfter(4))
        masked_diffusion.run(small(tmp_path), tmp_path / "halves")
    assert not (tmp_path / "halves" / "final.json").exists()
    masked_diffusion.run(small(tmp_path), tmp_path / "halves")
    for name in ("metrics.jsonl", "final.json"):
        assert (tmp_path / "halves" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    # The other objectives from the same warm start, two updates per step.
    for words in ("elbo,igpo,smoke", "diffu_grpo,igpo,smoke"):
        config = small(tmp_path, words)
        config.init_from, config.algorithm.prompt_masking = str(tmp_path / "whole" / "sft"), 0.15 * ("diffu" in words)
        config.train.update(steps=1, minibatches=2)
        masked_diffusion.run(config, tmp_path / words)
        start, row = metrics_of(tmp_path / words)
        assert np.isfinite(row["loss"]) and row["grad_norm"] > 0.0 and row["hints/rescued"] == 1.0
        assert start["eval/pass@1"] == rows[0]["eval/pass@1"] and row["ratio/mean"] == pytest.approx(1.0, abs=0.2)


@pytest.mark.usefixtures("kept_signals")
def test_without_a_group_that_is_all_wrong_hints_change_nothing(monkeypatch):
    """Elastic: the sampler is called once, and no row is replaced."""
    setup = toy("igpo,smoke")
    setup.config.sample.group_size, calls = 2, []
    monkeypatch.setattr(masked_groups, "jit_sampler", lambda setup: None)
    prompts = types.SimpleNamespace(feedback=lambda seen: None, metrics=dict)
    found = judged(0)
    found.result.rewards[[1, 2]] = 1.0

    class Fixed(masked_groups.Collector):
        def _sample(self, records, params, key, given, clock):
            calls.append(given)
            return found

    monkeypatch.setattr(masked_groups, "next", lambda prompts: [{}, {}], raising=False)
    monkeypatch.setattr(masked_groups, "feedback_of", lambda parts, size: None)
    monkeypatch.setattr(masked_groups, "success_of", lambda rows, size: rows.result.rewards)
    answers = Fixed(setup, None, prompts)(None, jax.random.key(0), 1, None)
    assert len(calls) == 1 and np.all(calls[0] == MASK) and not answers.hinted.any()
    assert answers.judged is found and answers.metrics["group/all_wrong"] == 0.0
    found.result.rewards[:] = 0.0  # all wrong, and the record has no reference
    setup.task.tokenizer.encode_continuation = lambda text, eos: [3]
    with pytest.raises(ValueError, match="the record of prompt '1\\+1=' has no completion to take a hint from"):
        Fixed(setup, None, prompts)(None, jax.random.key(0), 1, None)
