"""The bidirectional transformer, the sampler that fills in masks, and the Score of masked tokens."""

import copy
import functools
import pickle

import jax
import numpy as np
import pytest

from rl_jax.core.types import TokenBatch
from rl_jax.models.hf import families
from rl_jax.models.transformer.model import TransformerConfig, make_transformer
from rl_jax.rollout.lm.engine import make_generate
from rl_jax.rollout.lm.masked import joined, make_masked_generate, most_confident
from rl_jax.rollout.lm.sampling import Sampling
from rl_jax.tokenizers import CharTokenizer
from rl_jax.tokenizers.masked import WithMask
from rl_jax.training.masked_scoring import corrupted, make_masked_score
from rl_jax.training.scoring import make_score

VOCAB, MASK, EOS, LENGTH = 7, 6, 2, 4
SIZES = dict(vocab_size=VOCAB, embed_dim=8, num_layers=1, num_heads=2, num_kv_heads=1, head_dim=4, mlp_dim=16)
PROMPTS = np.array([[0, 3, 4], [5, 3, 4]], np.int32)
PROMPT_MASK = np.array([[False, True, True], [True, True, True]])


@pytest.fixture(scope="module")
def model():
    return make_transformer(TransformerConfig(**SIZES, causal=False))


@pytest.fixture(scope="module")
def params(model):
    return jax.jit(model.init)(jax.random.key(0))


@functools.cache
def compiled(**keywords):
    fields = dict(mask_id=MASK, completion_length=LENGTH, steps=LENGTH, block_length=LENGTH, eos_ids=(EOS,)) | keywords
    return jax.jit(make_masked_generate(make_transformer(TransformerConfig(**SIZES, causal=False)), **fields))


def test_a_token_sees_its_whole_segment_and_no_padding(model, params):
    tokens = np.array([[0, 3, 4, 5, 3], [0, 3, 4, 5, 4], [1, 3, 4, 5, 3]], np.int32)
    inside = np.array([[0, 1, 1, 1, 1]] * 3, np.int32)
    batch = TokenBatch(tokens, np.array([[0, 0, 1, 2, 3]] * 3, np.int32), inside)
    hidden = np.asarray(jax.jit(model.apply)(params, batch))
    assert np.all(np.abs(hidden[0, 1:4] - hidden[1, 1:4]).max(-1) > 1e-4)  # the last token changes those before it
    np.testing.assert_allclose(hidden[0, 1:], hidden[2, 1:], atol=1e-6)  # what stands in the padding changes nothing
    causal = make_transformer(TransformerConfig(**SIZES))
    before = np.asarray(jax.jit(causal.apply)(params, batch))
    np.testing.assert_allclose(before[0, 1:4], before[1, 1:4], atol=1e-6)


def test_answers_go_on_where_their_prompts_end():
    found = joined(PROMPTS, PROMPT_MASK, np.array([[5, 3], [4, 1]], np.int32))
    np.testing.assert_array_equal(found.tokens, [[0, 3, 4, 5, 3], [5, 3, 4, 4, 1]])
    np.testing.assert_array_equal(found.positions[:, 1:], [[0, 1, 2, 3], [1, 2, 3, 4]])
    np.testing.assert_array_equal(found.segment_ids, [[0, 1, 1, 1, 1], [1, 1, 1, 1, 1]])


def test_what_needs_a_causal_model_refuses_this_one_and_the_other_way_round(model, params):
    generate = make_generate(model, completion_length=2, eos_ids=(EOS,))
    with pytest.raises(ValueError, match="causal=False.*there is no KV cache.*experiments.masked_diffusion"):
        generate(params, PROMPTS, PROMPT_MASK, jax.random.key(0))
    for function in (model.decode, model.extend, model.init_cache):
        with pytest.raises(ValueError, match="no KV cache"):
            function(1, 2)
    with pytest.raises(ValueError, match="make_score: this model is not causal"):
        make_score(model, completion_length=2)
    causal = make_transformer(TransformerConfig(**SIZES))
    with pytest.raises(ValueError, match="cannot fill in masks: set model.causal=False"):
        make_masked_score(causal, mask_id=MASK)
    with pytest.raises(ValueError, match="cannot fill in masks"):
        make_masked_generate(causal, mask_id=MASK, completion_length=2, steps=2, block_length=2, eos_ids=())
    with pytest.raises(ValueError, match="no family of llama.* describes this model: .*causal=False"):
        families.write_config(TransformerConfig(**SIZES, causal=False))  # an export would be read as a causal model
    with pytest.raises(ValueError, match="causal=False takes attention='dot_product' or 'auto' and no windows"):
        TransformerConfig(**SIZES, causal=False, windows=(2,))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (dict(block_length=0), "denoise.block_length=0 must divide the 4 tokens"),
        (dict(block_length=3), "denoise.block_length=3 must divide the 4 tokens"),
        (dict(steps=5), "denoise.steps=5 must be a multiple of the 1 blocks and 4 at most"),
        (dict(steps=3, block_length=2), "denoise.steps=3 must be a multiple of the 2 blocks"),
        (dict(order="best"), "denoise.order='best' is none of confidence, random"),
        (dict(sampling=Sampling(repetition_penalty=2.0)), "repetition_penalty=2.0 must be 1"),
    ],
)
def test_schedules_that_cannot_be(fields, words):
    with pytest.raises(ValueError, match=words):
        compiled(**fields)


def test_no_position_is_taken_twice_however_unlikely_the_open_ones_are():
    confidence = np.float32([[-np.inf, -np.inf, -1.0, -9.0], [0.0, -3.0, -2.0, -1.0]])
    is_open = np.array([[False, True, False, True], [False, True, True, True]])
    for left, expected in ((1, is_open), (2, [[False, False, False, True], [False, False, True, True]])):
        np.testing.assert_array_equal(most_confident(confidence, is_open, left), expected)
    confidence[0, 1] = np.nan  # of a network that has diverged
    assert not (np.asarray(most_confident(confidence, is_open, 1)) & ~is_open).any()


@pytest.fixture(scope="module")
def logits_of(model):
    return jax.jit(lambda params, batch: model.unembed(params, model.apply(params, batch)[:, -LENGTH:]))


def slow_sample(logits_of, params, given, steps, block_length):
    """Greedy sampling by loops: the answers, and the log-prob of each token when it was filled in."""
    answers, log_probs = given.copy(), np.zeros(given.shape)
    turns = steps // (LENGTH // block_length)
    join = jax.jit(joined)
    for step in range(steps):
        logits = np.array(logits_of(params, join(PROMPTS, PROMPT_MASK, answers)), np.float64)
        logits[..., MASK] = -np.inf
        probs = np.exp(logits - logits.max(-1, keepdims=True))
        probs /= probs.sum(-1, keepdims=True)
        block = range(step // turns * block_length, (step // turns + 1) * block_length)
        for row in range(2):
            of_row = probs[row]
            masked = sorted((i for i in block if answers[row, i] == MASK), key=lambda i: -of_row[i].max())  # noqa: B023
            for place in masked[: -(-len(masked) // (turns - step % turns))]:
                answers[row, place], log_probs[row, place] = of_row[place].argmax(), np.log(of_row[place].max())
    return answers, log_probs


@pytest.mark.parametrize("steps", [4, 2])
def test_the_most_confident_positions_are_filled_in_first_as_by_loops(logits_of, params, steps):
    given = np.full((2, LENGTH), MASK, np.int32)
    given[1, 2] = 5  # inpainted: it stays, and the others are spread over the steps
    generate = compiled(steps=steps, block_length=2 if steps == 4 else 4, sampling=Sampling(top_k=1))
    rollout = jax.tree.map(np.asarray, generate(params, PROMPTS, PROMPT_MASK, jax.random.key(3), given))
    answers, log_probs = slow_sample(logits_of, params, given, steps, 2 if steps == 4 else 4)
    np.testing.assert_array_equal(rollout.batch.tokens[:, -LENGTH:], answers)
    np.testing.assert_allclose(rollout.raw_log_probs, log_probs, atol=1e-5)
    assert rollout.batch.tokens[1, -2] == 5 and rollout.raw_log_probs[1, 2] == 0.0


def test_rows_end_at_the_first_eos_have_no_masks_and_do_not_depend_on_each_other(params):
    generate = compiled(order="random", group_size=8)
    rollout = jax.tree.map(np.asarray, generate(params, PROMPTS, PROMPT_MASK, jax.random.key(1)))
    answers = rollout.batch.tokens[:, -LENGTH:]
    assert answers.shape == (16, LENGTH) and not np.any(answers == MASK)
    for row, answer in enumerate(answers.tolist()):
        end = answer.index(EOS) + 1 if EOS in answer else LENGTH
        assert rollout.completion_mask[row].tolist() == [i < end for i in range(LENGTH)]
        assert bool(rollout.finished[row]) is (EOS in answer) and rollout.truncated[row] != rollout.finished[row]
    assert np.all(rollout.raw_log_probs < 0.0) and len({tuple(a) for a in answers.tolist()}) > 4
    other = generate(params, np.stack([PROMPTS[0], PROMPTS[0] * 0 + 1]), PROMPT_MASK, jax.random.key(1))
    np.testing.assert_array_equal(np.asarray(other.batch.tokens)[:8], np.asarray(rollout.batch.tokens)[:8])


def test_scores_are_those_of_the_masked_row_and_the_mask_has_no_probability(model, logits_of, params):
    answers = np.array([[3, 4, 2, 2], [5, 5, 2, 2]], np.int32)
    masked = np.array([[[True, False, True, False], [True] * 4]] * 2)
    put = jax.jit(lambda answers, masked: corrupted(joined(PROMPTS, PROMPT_MASK, answers), masked, MASK))
    rows = jax.tree.map(np.asarray, put(answers, masked))
    assert rows.batch.tokens[:, -LENGTH:].tolist()[:2] == [[6, 4, 6, 2], [6, 6, 6, 6]]
    assert rows.targets.tolist()[:2] == [[3, 4, 2, 2]] * 2 and rows.batch.tokens[2, 0] == 5
    scores = jax.jit(make_masked_score(model, mask_id=MASK))(params, rows)
    logits = np.array(logits_of(params, rows.batch), np.float64)[..., :MASK]
    log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    wanted = np.take_along_axis(log_probs, np.asarray(rows.targets)[..., None], -1)[..., 0]
    np.testing.assert_allclose(scores.log_probs, wanted, atol=1e-5)
    np.testing.assert_allclose(scores.entropy, -(np.exp(log_probs) * log_probs).sum(-1), atol=1e-5)


def test_the_mask_is_one_more_token_of_no_text():
    tokenizer = WithMask(CharTokenizer("ab"))
    assert (tokenizer.vocab_size, tokenizer.mask_id, tokenizer.pad_id, tokenizer.eos_ids) == (6, 5, 0, (2,))
    assert tokenizer.encode("ab", eos=True) == [3, 4, 2] and tokenizer.decode([3, 5, 4, 2]) == "ab"
    assert tokenizer.token_text(5) == "<mask>" and tokenizer.token_text(3) == "a"
    with pytest.raises(ValueError):
        tokenizer.decode([6])
    for same in (copy.copy(tokenizer), copy.deepcopy(tokenizer), pickle.loads(pickle.dumps(tokenizer))):
        assert same.mask_id == 5 and same.decode([3, 5, 4]) == "ab"
    with pytest.raises(AttributeError, match="'WithMask' object has no attribute '_secret'"):
        tokenizer._secret  # noqa: B018
