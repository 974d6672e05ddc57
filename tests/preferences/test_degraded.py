"""SPO (arXiv 2409.17791): RAKE's phrases, copies without them, the records, and the loss of their degrees."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs.preferences import spo_degree
from rl_jax import preferences
from rl_jax.losses.preference import regularizers
from rl_jax.preferences import degraded


def test_phrases_are_scored_by_degree_over_frequency():
    text = "The red bird saw a red kite, and the bird ran."
    found = [(text[start:end], score) for (start, end), score in degraded.key_phrases(text)]
    # Runs of 3, 2 and 2 words; red and bird are in two of them, (3 + 2) / 2 each, the other words in one.
    assert found == [("red bird saw", 2.5 + 2.5 + 3.0), ("red kite", 2.5 + 2.0), ("bird ran", 2.5 + 2.0)]
    assert degraded.key_phrases("it is so.") == []


def test_each_degree_loses_more():
    text = "The red bird saw a red kite, and the bird ran."
    assert degraded.degrade(text, 4) == [
        text,
        "The a red kite, and the bird ran.",
        "The a, and the bird ran.",
        "The a, and the.",
    ]
    assert degraded.degrade("it is so.", 3) == ["it is so."] * 3


def test_a_record_has_its_pair_and_the_copies(tmp_path):
    config = spo_degree.get_config("token,smoke")
    fields = config.data.to_dict()
    fields["of"] |= dict(data_dir=str(tmp_path), num_prompts=30)
    source, plain = (preferences.load(**keywords).data_source("train") for keywords in (fields, fields["of"]))
    record, pair = source[3], plain[3]
    assert len(source) == len(plain) and source.kind == "rankings"
    assert record["responses"][:2] == pair["responses"] and len(record["responses"]) == config.algorithm.responses == 8
    for place, text in enumerate(pair["responses"]):
        copies = record["responses"][2 + 3 * place :][:3]
        assert copies == [f"{copy}|{d}" for d, copy in enumerate(degraded.degrade(text, 3))]
        assert copies[0][:-2] == text and len({copy[:-2] for copy in copies}) == 3
    # With the chosen one's reward a copy is in no comparison.
    assert record["rewards"] == [*pair["rewards"], *pair["rewards"][:1] * 6] and pair["rewards"][0] > pair["rewards"][1]
    with pytest.raises(ValueError, match="degraded needs pairs, and generated holds labels"):
        preferences.load(**(fields | dict(of=fields["of"] | dict(kind="labels"))))
    with pytest.raises(ValueError, match="degrees=1 must be from 2 to 10"):
        preferences.load(**(fields | dict(degrees=1)))


def test_copies_that_do_not_say_their_degree(tmp_path):
    """The response itself is the first copy."""
    config = spo_degree.get_config("smoke")
    fields = config.data.to_dict()
    fields["of"] |= dict(data_dir=str(tmp_path), num_prompts=30)
    source, plain = (preferences.load(**keywords).data_source("train") for keywords in (fields, fields["of"]))
    record, pair = source[3], plain[3]
    copies = [degraded.degrade(text, 3)[1:] for text in pair["responses"]]
    assert record["responses"] == [*pair["responses"], *copies[0], *copies[1]]
    assert record["info"]["degrees"] == [0, 0, 1, 2, 1, 2] and len(record["responses"]) == config.algorithm.responses
    assert record["rewards"] == [*pair["rewards"], *pair["rewards"][:1] * 4]
    assert "degrees" not in pair["info"]


def test_the_loss_is_that_of_the_token_before_the_end():
    rng = np.random.default_rng(0)
    log_probs, lengths = np.float32(rng.uniform(-3, -0.1, (3, 5, 6))), rng.integers(2, 7, (3, 5))
    lengths[0, 3], lengths[2] = 1, 6
    present = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 1], [1, 1, 0, 0, 0]], bool)
    mask = (np.arange(6) < lengths[:, :, None]) & present[:, :, None]
    clean = np.where(mask, log_probs, 0)
    expected = []
    for n in range(3):
        said = [-clean[n, k, lengths[n, k] - 2] for k in range(2, 5) if present[n, k] and lengths[n, k] > 1]
        expected.append(np.mean(said) if said else 0.0)
    assert len([x for x in expected if x]) == 2
    found = regularizers.degree_nll(jnp.asarray(clean), jnp.asarray(mask), present=jnp.asarray(present))
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    slope = np.asarray(
        jax.grad(lambda x: regularizers.degree_nll(x, jnp.asarray(mask), present=jnp.asarray(present)).sum())(
            jnp.asarray(clean)
        )
    )
    assert np.count_nonzero(slope) == 4 and not slope[:, :2].any()  # the degrees alone are learned
