"""The study of a policy on reward models: stories of words, one update, what a run has lost, and the whole, small."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from experiments.studies import over_optimized_policy as study
from experiments.studies import texts
from experiments.studies.over_optimization import Policy, make_draw
from rl_jax.models.transformer.model import TransformerConfig, make_transformer
from tests.experiments.test_studies import run

TINY = dict(embed_dim=8, num_layers=1, num_heads=1, num_kv_heads=1, head_dim=8, mlp_dim=8)


def test_what_a_run_gained_and_lost():
    windows = dict(gold=[0.5, 0.8, 0.9, 0.6], proxy=[0.0, 1.0, 2.0, 3.0], others=[0.1, 0.5, 0.4, 0.2], kl=[0, 1, 2, 4])
    windows |= dict(first=[0.5, 0.9, 0.85, 0.5], second=[0.5, 0.7, 0.95, 0.65])
    found = study.described({name: np.array(row) for name, row in windows.items()})
    expected = dict(start=0.5, peak=0.9, after=0.6, mean=2.3 / 3, rise=0.4, lost=0.3, proxy_gain=3.0, others=0.1, kl=4)
    expected["fell"] = 0.7 - 0.65  # in the other half what window 1 was over the last
    assert found == pytest.approx(expected)


def test_an_update_is_the_policy_gradient_with_the_kl_in_the_reward():
    """Of a policy beside its reference: A_i = R_i - R_j in pairs, R = reward - .5 (log pi - log ref)."""
    task = texts.story_task(count=40, sentences=1, moody=1.0, seed=0)
    model = make_transformer(TransformerConfig(vocab_size=task.tokenizer.vocab_size, **TINY))
    reference, params = (model.init(jax.random.key(seed)) for seed in (0, 1))
    policy = Policy(task, model, reference, (12, 6))
    tx, improve = study.make_improve(policy, group_size=2, kl_coef=0.5, learning_rate=1e-2)
    rollout, gold = make_draw(policy, 2)(params, jax.random.key(1), task.data_source("train")[:4])
    assert gold.shape == (8,)
    rewards = np.random.default_rng(0).normal(size=8).astype(np.float32)
    found, _, kl = improve(params, tx.init(params), rollout, jnp.asarray(rewards))
    score = study.make_score(model, completion_length=6)

    @jax.jit
    def of_rows(params):
        return jnp.sum(jnp.where(rollout.completion_mask, score(params, rollout.batch).log_probs, 0.0), axis=1)

    log_ratio = np.asarray(of_rows(params) - of_rows(reference))
    assert float(kl) == pytest.approx(log_ratio.mean(), rel=1e-4)
    shaped = rewards - 0.5 * log_ratio
    advantages = jnp.asarray(shaped - shaped.reshape(4, 2)[:, ::-1].reshape(-1))
    gradient = jax.jit(jax.grad(lambda params: -jnp.mean(advantages * of_rows(params))))(params)
    expected = optax.apply_updates(params, tx.update(gradient, tx.init(params), params)[0])
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=2e-4), found, expected)


@pytest.mark.slow
def test_the_whole_at_its_smoke_size():
    found = run("rlhf_ensemble_rare", seeds=(0, 1))
    for metrics in found.values():
        np.testing.assert_allclose(metrics["lost"], np.subtract(metrics["peak"], metrics["after"]))
        assert np.all((np.array(metrics["after"]) >= -4) & (np.array(metrics["after"]) <= 1))
    one, five = found["single"], found["worst"]
    assert np.array_equal(one["start"], five["start"]) and not np.array_equal(one["after"], five["after"])


@pytest.mark.slow
def test_labels_are_of_the_texts_of_another_model():
    """At its smoke size: whose samples are labelled decides what the reward models say, and nothing before that."""
    shares = dict(share=0.0), dict(share=0.9)
    one, other = (run("rlhf_ensemble_unseen", seeds=(0,), labels=dict(task=x), arms=("single",)) for x in shares)
    assert one["single"]["start"] == other["single"]["start"]
    assert one["single"]["agreement"] != other["single"]["agreement"]
