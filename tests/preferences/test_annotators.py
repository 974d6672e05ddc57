"""preferences/annotators.py (MaxMin-RLHF): the E step, groups of annotators, the reward of the worst-off group."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs.preferences import maxmin
from experiments.parts import check_config
from experiments.tools import preference_groups
from rl_jax import preferences
from rl_jax.credit import ensembles
from rl_jax.preferences import annotators


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(tmp_path_factory.mktemp("annotators"))


def records_of(folder, **more):
    options = dict(num_prompts=120, annotators=8, data_dir=folder) | more
    source = preferences.load("annotators", **options).data_source("train")
    return [source[i] for i in range(len(source))]


def test_an_annotator_goes_to_the_model_that_explains_their_pairs():
    gaps = np.array([[2.0, 2.0, -1.0, -3.0], [-2.0, 1.0, 0.5, 3.0]])
    found = annotators.assign(gaps, ["a", "a", "b", "b"])
    likelihood = np.log(1 / (1 + np.exp(-gaps)))
    assert found == {"a": int(np.argmax(likelihood[:, :2].sum(1))), "b": int(np.argmax(likelihood[:, 2:].sum(1)))}
    assert found == {"a": 0, "b": 1} and annotators.assign(np.zeros((3, 1)), ["x"]) == {"x": 0}
    assert annotators.assign(gaps[:1], list("aabb")) == {"a": 0, "b": 0}, "one group is plain RLHF"
    with pytest.raises(ValueError, match=r"gaps of \[groups, 2 pairs\], found \(2, 4\)"):
        annotators.assign(gaps, ["a", "b"])


def test_em_finds_the_two_tastes(folder):
    """Bradley-Terry on one feature, the length: from random groups to the true ones."""
    records = records_of(folder)
    names = [record["info"]["annotator"] for record in records]
    shorter = np.array([np.diff([len(text) for text in record["responses"]])[0] for record in records]) / 10
    groups = {name: annotators.start_of(name, 2) for name in names}
    for _ in range(10):
        own = np.array([groups[name] for name in names])
        slopes = []
        for u in (0, 1):  # the M step, one parameter
            slope, gaps = 0.0, shorter[own == u]
            for _ in range(200):
                slope += 0.5 * np.mean(gaps / (1 + np.exp(slope * gaps))) if len(gaps) else 0.0
            slopes.append(slope)
        groups = annotators.assign(np.outer(slopes, shorter), names)
    truth = {record["info"]["annotator"]: record["info"]["user"] for record in records}
    assert len(set(truth.values())) == 2 and len(set(groups.values())) == 2
    assert "8 annotators in groups of" in preference_groups.report(groups, records, "annotator", 2)
    assert preference_groups.report(groups, records, "annotator", 2).endswith("; 1.000 of them with their own taste")


def test_a_group_has_the_pairs_of_its_annotators(folder, tmp_path):
    every = records_of(folder)
    assert all((record["info"]["annotator"] < 2) == (record["info"]["user"] == 1) for record in every)
    parts = [records_of(folder, group=u) for u in (0, 1)]
    assert sum(map(len, parts)) == len(every)
    for u, part in enumerate(parts):
        assert all(annotators.start_of(record["info"]["annotator"], 2) == u for record in part)
    path = tmp_path / "groups.json"
    path.write_text(json.dumps({str(a): int(a < 2) for a in range(8)}))
    minority = records_of(folder, group=1, assignment=str(path))
    assert {record["info"]["user"] for record in minority} == {1}
    path.write_text("{}")
    for bad, said in (
        (dict(assignment=str(path)), "has no group for the annotators .0, 1, 2, 3, 4."),
        (dict(group=2), "group=2 below 2"),
        (dict(world="sums"), "world='sums' is none of length, order"),
    ):
        with pytest.raises(ValueError, match=said):
            records_of(folder, **bad)


def test_both_splits_have_pairs_of_every_group(folder):
    """By the split's own hash the test split was of the first tenth of the annotators, all of the minority."""
    source = preferences.load("annotators", num_prompts=120, annotators=8, data_dir=folder)
    for split in ("train", "test"):
        own = source.data_source(split)
        records = [own[i] for i in range(len(own))]
        assert {record["info"]["user"] for record in records} == {0, 1}
        assert len({record["info"]["annotator"] for record in records}) > 4


def test_the_reward_is_that_of_the_group_with_the_lowest_mean():
    rewards = jnp.array([[1.0, 0.0], [-5.0, 0.5], [1.0, -1.0]])
    np.testing.assert_array_equal(ensembles.max_min(rewards), rewards[:, 0])
    np.testing.assert_array_equal(ensembles.max_min(rewards + jnp.array([[3.0, 0.0]])), rewards[:, 1])
    np.testing.assert_array_equal(ensembles.max_min(rewards[:, :1]), ensembles.mean(rewards[:, :1]))
    np.testing.assert_array_equal(ensembles.max_min(rewards), ensembles.robust(rewards, weight=0.0))


def test_the_majority_gives_a_little_and_the_minority_gains():
    """Two answers, opposed tastes, three quarters want the first: softmax ascent on the mean and on the minimum."""
    tastes = np.array([[1.0, 0.0], [0.0, 1.0]])
    found = {}
    for name, weight in (("mean", np.array([0.75, 0.25])), ("max_min", None)):
        logit = 0.0
        for _ in range(2_000):
            p = 1 / (1 + np.exp(-logit))
            chosen = tastes[int(np.argmin(tastes @ [p, 1 - p]))] if weight is None else weight @ tastes
            logit += 0.05 * p * (1 - p) * (chosen[0] - chosen[1])
        found[name] = tastes @ [p, 1 - p]
    assert found["max_min"].min() > 0.45 > 0.1 > found["mean"].min()
    assert found["mean"] @ [0.75, 0.25] > found["max_min"] @ [0.75, 0.25] > 0.4


def reached(rewards, combine, steps=200, rows=64):
    """Both groups' mean grades after REINFORCE on four lengths. rewards: [4, U] of each length; combine: of a batch."""
    rng, logits = np.random.default_rng(0), np.zeros(4)
    combined = jax.jit(combine)
    grades = np.stack([np.linspace(1, 0, 4), np.linspace(0, 1, 4)])  # the majority wants one number, the minority four
    for _ in range(steps):
        probs = np.exp(logits - logits.max())
        probs /= probs.sum()
        drawn = rng.choice(4, rows, p=probs)
        paid = np.asarray(combined(jnp.asarray(rewards[drawn], jnp.float32)))
        logits += 0.2 * (np.eye(4)[drawn] - probs).T @ (paid - paid.mean()) / rows * 4
    return grades @ probs


def test_max_min_serves_the_minority_and_one_reward_model_does_not():
    """Rewards as Bradley-Terry leaves them, at any level: standardised as the config has it, or one group is the lowest
    whatever the policy does."""
    lengths = np.linspace(1, 0, 4)
    groups = np.stack([3.0 * lengths + 5.0, 3.0 * (1 - lengths) - 5.0], axis=1)
    means, stds = jnp.asarray(groups.mean(0), jnp.float32), jnp.asarray(groups.std(0), jnp.float32)
    single = reached(np.log(3) * lengths[:, None], ensembles.mean)  # of the pairs of both, three to one
    fair = reached(groups, lambda x: ensembles.max_min(ensembles.standardized(x, means, stds)))
    raw = reached(groups, ensembles.max_min)
    assert single[1] < 0.15 and raw[0] < 0.15, (single, raw)
    assert fair.min() > 0.4, fair


@pytest.mark.parametrize("arg", [None, "group1", "group0,smoke", "everyone", "mean", "single"])
def test_its_config_can_run(arg):
    config = maxmin.get_config(arg)
    check_config.check(config)
    model = any(word in (arg or "") for word in maxmin.MODELS)
    assert config.program == ("reward_model" if model else "ppo")
    # Bradley-Terry leaves each group's level open: only standardised rewards have means that can be compared.
    assert not model or config.algorithm.standardize
    with pytest.raises(ValueError, match="choose one of group0, group1, everyone, mean, single, not group0, mean"):
        maxmin.get_config("group0,mean")


def test_the_report_of_many_tastes_ends_at_once():
    """Groups are named after tastes by the best assignment, not by trying all of 12! names."""
    records = [{"info": {"annotator": i, "user": i % 12}} for i in range(24)]
    for count, share in ((12, "1.000"), (2, "0.167")):
        said = preference_groups.report({i: i % count for i in range(24)}, records, "annotator", count)
        assert said.endswith(f"; {share} of them with their own taste")
