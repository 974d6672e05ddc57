"""The study of the best of many samples by reward models: labels, what they choose, and the whole at its smoke size."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.studies import over_optimization as study
from rl_jax.core.types import TokenBatch
from rl_jax.models.transformer.model import TransformerConfig, make_transformer
from tests.experiments.test_studies import run


def rows_of(tokens) -> TokenBatch:
    """Rows without padding."""
    tokens = np.asarray(tokens, np.int32)
    places = np.broadcast_to(np.arange(tokens.shape[-1], dtype=np.int32), tokens.shape)
    return TokenBatch(tokens, places, np.ones_like(tokens))


def test_a_share_of_the_labels_is_reversed_and_ties_come_last():
    gold = np.array([[0.1, 0.9], [0.5, 0.5], [0.7, 0.2], [0.0, 1.0], [0.4, 0.4], [0.6, 0.3]])
    tokens = np.arange(24).reshape(6, 2, 2)
    of_token = dict(zip(tokens[..., 0].ravel().tolist(), gold.ravel().tolist(), strict=True))
    pairs = study.labelled(study.Samples(rows_of(tokens), gold), 4, 0.25, seed=3)
    found = np.vectorize(of_token.get)(pairs.tokens[..., 0])
    assert pairs.tokens.shape == (4, 2, 2) and sorted(pairs.tokens[:, 0, 0] // 4) == [0, 2, 3, 5]
    assert (found[:, 0] < found[:, 1]).sum() == 1 and (found[:, 0] > found[:, 1]).sum() == 3
    everything = study.labelled(study.Samples(rows_of(tokens), gold), 6, 0.0, seed=3)
    assert sorted(everything.tokens[-2:, 0, 0] // 4) == [1, 4]


def test_what_the_best_of_n_is_worth():
    rng = np.random.default_rng(0)
    gold = rng.uniform(size=(32, 64))
    noise = 2.0 * rng.normal(size=(32, 64, 5))
    right = study.gold_of_best(gold[..., None], gold, None, (1, 64))
    np.testing.assert_allclose(right, [gold.mean(), gold.max(axis=1).mean()], rtol=1e-6)
    members = 3.0 * (gold[..., None] * 2.0 + noise) + np.arange(5)  # scales and offsets are taken out
    alone, mean = (study.gold_of_best(members, gold, combine, (1, 8, 64)) for combine in (None, "mean"))
    by_hand = [study.gold_of_best(members[..., k : k + 1], gold, "mean", (1, 8, 64)) for k in range(5)]
    np.testing.assert_allclose(alone, np.mean(by_hand, axis=0), rtol=1e-6)
    assert alone[0] == pytest.approx(mean[0]) and np.all(mean[1:] > alone[1:] + 0.05)
    scaled = members * np.array([1.0, 9.0, 0.1, 2.0, 5.0]) - 7.0
    worst = [study.gold_of_best(x, gold, "worst_case", (64,)) for x in (members, scaled)]
    np.testing.assert_allclose(*worst)
    assert worst[0] > alone[2]


def test_members_learn_the_labels_each_from_params_of_its_own():
    """A response with more 3s than 4s is better; held-out pairs of it are told apart."""
    model = make_transformer(
        TransformerConfig(
            vocab_size=8, embed_dim=16, num_layers=1, num_heads=1, num_kv_heads=1, head_dim=16, mlp_dim=16
        )
    )
    rng = np.random.default_rng(0)
    tokens = rng.integers(3, 5, (96, 2, 6))
    more = (tokens == 3).sum(axis=-1)
    tokens = np.where((more[:, :1] < more[:, 1:])[..., None], tokens[:, ::-1], tokens)[more[:, 0] != more[:, 1]]
    train = study.make_reward_models(model, members=3, steps=60, batch_size=16, learning_rate=1e-2)
    params = train(jax.random.key(0), jax.tree.map(jnp.asarray, rows_of(tokens[:32])))
    scores = study.make_score_all(model)(params, rows_of(tokens[32:]))
    assert scores.shape == (len(tokens) - 32, 2, 3)
    assert np.all(np.mean(scores[:, 0] > scores[:, 1], axis=0) > 0.9)
    assert np.ptp(scores, axis=-1).min() > 1e-3


@pytest.mark.slow
def test_the_whole_at_its_smoke_size():
    found = run("rlhf_ensemble_held", seeds=(0, 1), arms=dict(single=None, mean="mean"))
    for metrics in found.values():
        assert metrics.keys() == {"start", "middle", "after", "held", "agreement"}
        np.testing.assert_allclose(metrics["held"], np.subtract(metrics["after"], metrics["middle"]))
        assert np.all((np.array(metrics["start"]) >= 0) & (np.array(metrics["start"]) <= 1))
    assert found["single"]["agreement"] == found["mean"]["agreement"]
    assert len(set(found["mean"]["agreement"])) == 2 and np.all(np.abs(found["mean"]["agreement"]) < 0.999)
