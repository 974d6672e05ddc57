"""The studies behind the ablations, small: what a right loss must give, and that a wrong one gives something else."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from experiments import studies
from experiments.ablation import cli
from experiments.studies import base, games, length
from tests.paths import REPO_ROOT


def run(key: str, seeds=(0, 1, 2), arms: dict | tuple = (), **settings) -> dict:
    """arm -> metric -> [S] of the ablation's study at its smoke size, with other settings where they are given.

    arms: in place of all of its own; or the names of some of its own. Each is another program to compile.
    """
    paper = cli.load(key, smoke=True)
    paper.seeds = tuple(seeds)
    with paper.settings.unlocked():
        if arms:
            found = arms if isinstance(arms, dict) else {name: paper.settings.arms[name] for name in arms}
            del paper.settings.arms
            paper.settings.arms = found
        paper.settings.update(settings)
    return cli.run_study(paper)[0]


@pytest.mark.slow
def test_preference_loss_is_dpos():
    log_probs, ref = jnp.array([[-1.0, -2.0], [-0.5, -0.1]]), jnp.array([[-1.5, -1.0], [-0.5, -0.7]])
    objective = base.make_objective({"beta": 0.5})
    found = jax.jit(lambda *arrays: base.preference_loss(*arrays, objective))(log_probs, ref)  # op by op it is slow
    margins = 0.5 * ((log_probs - ref)[:, 0] - (log_probs - ref)[:, 1])
    np.testing.assert_allclose(found, -np.mean(np.log(1 / (1 + np.exp(-margins)))), rtol=1e-6)


def test_slots_are_bound_by_name():
    objective = base.make_objective({"beta": 2.0, "reference": {}, "link": {"fn": "hinge", "margin": 3.0}})
    assert objective.beta == 2.0 and objective.reference == {} and float(objective.link(jnp.float32(1.0))) == 2.0
    with pytest.raises(ValueError, match="has no function 'hing'"):
        base.make_objective({"link": "hing"})


def test_samples_follow_the_policy():
    log_probs = jnp.log(jnp.array([0.5, 0.0, 0.3, 0.2]))
    drawn = np.bincount(base.sample_actions(jax.random.key(0), log_probs, (20_000,)), minlength=4) / 20_000
    np.testing.assert_allclose(drawn, [0.5, 0.0, 0.3, 0.2], atol=0.015)


def test_labels_follow_bradley_terry():
    rewards, first = jnp.array([0.0, 1.0]), jnp.zeros(20_000, int)
    pairs = base.bradley_terry(jax.random.key(1), rewards, first, first + 1)
    assert float(jnp.mean(pairs[:, 0] == 1)) == pytest.approx(1 / (1 + np.exp(-1.0)), abs=0.015)
    assert set(np.unique(np.asarray(pairs).sum(axis=1))) == {1}


def test_descend_keeps_its_path():
    import optax

    last, path = base.descend(lambda x: 0.5 * x * x, jnp.float32(1.0), optax.sgd(0.5), 6, every=2)
    np.testing.assert_allclose(path, [0.25, 0.0625, 0.015625])
    np.testing.assert_allclose([last, base.descend(lambda x: 0.5 * x * x, jnp.float32(1.0), optax.sgd(0.5), 6)], 2**-6)


@pytest.mark.slow
def test_robust_loss_undoes_the_flips():
    """Without flips it is the correction that is wrong; and the arms differ in nothing but their loss."""
    noisy = {arm: np.mean(row["kl"]) for arm, row in run("rdpo_label_noise", pairs=4000, steps=100).items()}
    assert noisy["rdpo"] < noisy["dpo"] - 0.1 and noisy["dpo"] < noisy["cdpo"] - 0.1
    arms = {name: {"link": {"fn": "robust", "flip_rate": rate}} for name, rate in (("rdpo", 0.3), ("zero", 0.0))}
    clean = run("rdpo_label_noise", pairs=500, steps=100, flip_rate=0.0, arms=arms | {"dpo": {}})
    np.testing.assert_allclose(clean["zero"]["kl"], clean["dpo"]["kl"], rtol=1e-3)
    assert np.mean(clean["dpo"]["kl"]) < np.mean(clean["rdpo"]["kl"]) / 2 and len(set(clean["dpo"]["kl"])) == 3


@pytest.mark.slow
def test_ipo_stops_where_its_target_is():
    targets = {"ipo": 5.0, "half": 2.5}
    arms = {name: {"beta": 1.0, "link": {"fn": "square", "target": target}} for name, target in targets.items()}
    found = run("ipo_deterministic", steps=2000, arms=arms | {"dpo": {"beta": 0.1}})
    np.testing.assert_allclose(found["ipo"]["margin"], 5.0, atol=0.1)
    np.testing.assert_allclose(found["half"]["margin"], 2.5, atol=0.05)
    assert min(found["dpo"]["margin"]) > 7.0 and min(found["dpo"]["growth"]) > 3.0


def test_the_duality_gap_is_zero_at_the_nash_policy_only():
    wins = jnp.array([[0.5, 0.8, 0.2], [0.2, 0.5, 0.8], [0.8, 0.2, 0.5]])
    uniform = jnp.full(3, -jnp.log(3.0))
    gap = jax.jit(lambda policy: games.duality_gap(policy, uniform, wins, 0.1))
    assert float(gap(uniform)) == pytest.approx(0.0, abs=1e-6)
    other = jax.nn.log_softmax(jnp.array([1.0, 0.0, 0.0]))
    # By hand: the best response to `other` among 20,000 policies of a grid.
    grid = np.random.default_rng(0).dirichlet(np.ones(3) * 0.5, 20_000)
    kl = lambda p, q: np.sum(p * (np.log(np.maximum(p, 1e-300)) - q), axis=-1)  # noqa: E731
    values = grid @ np.asarray(wins) @ np.exp(other) - 0.1 * kl(grid, np.asarray(uniform))
    best = values.max() + 0.1 * kl(np.exp(other), np.asarray(uniform))
    assert float(gap(other)) == pytest.approx(2 * (best - 0.5), abs=2e-3)


@pytest.mark.slow
def test_the_extragradient_step_is_what_converges():
    slots = dict(beta=1.0, offset=dict(fn="reward_gap", eta=50.0), link=dict(fn="square", target=0.0))
    found = run("nash_last_iterate", beta=0.02, steps=600, slots=slots)
    assert max(found["egpo"]["log10_gap"]) < -8.0
    assert np.mean(found["omd"]["log10_gap"]) > -7.0 and np.mean(found["nash_md"]["log10_gap"]) > -7.0
    arms = {"egpo": dict(opponent="policy", extragradient=True)}
    wrong = run("nash_last_iterate", beta=0.02, steps=600, arms=arms)  # the loss's eta is no longer 1 / beta
    assert max(wrong["egpo"]["log10_gap"]) > -3.0


@pytest.mark.slow
def test_the_power_law_is_what_makes_the_target_dpos_optimum():
    found = run("did_power_law", pairs=2000, steps=150, arms={"power_law": "power_law", "uniform": "uniform"})
    assert max(found["power_law"]["kl"]) < 0.1 and np.mean(found["uniform"]["kl"]) > 0.2


@pytest.mark.slow
def test_online_pairs_give_more_reward_for_the_same_kl():
    found = run("online_vs_offline", steps=250)
    for metric in ("reward_kl_0.5", "reward_kl_2", "reward_kl_4"):
        assert all(np.array(found["optimum"][metric]) >= np.array(found["online"][metric]) - 1e-3), "none beats it"
    assert min(found["online"]["max_kl"]) > 4.0
    assert np.mean(found["online"]["reward_kl_4"]) > np.mean(found["offline"]["reward_kl_4"]) > 1.0


@pytest.mark.slow
def test_pairs_of_every_origin_teach_something():
    found = run("rso_pairs", policy_features=10, slots={"beta": 0.5}, pairs=400, steps=120)
    for arm in ("offline", "sft", "rso"):
        assert np.mean(found[arm]["kl"]) < 0.6 and np.mean(found[arm]["value"]) > 0.2
        value = np.array(found[arm]["reward"]) - np.array(found[arm]["value"])
        assert all(value > 0), "the KL costs something"


@pytest.mark.slow
def test_ensembles_are_harder_to_exploit():
    arms = {
        "single": dict(members=1, best_of_n="mean", ppo="mean"),
        "worst": dict(members=1, best_of_n="worst_case", ppo="worst_case"),
        "mean": dict(members=5, best_of_n="mean", ppo="mean"),
    }
    world, best_of = dict(pairs=200, model_hidden=16), dict(pool=1024)
    found = run("rm_ensemble", seeds=range(10), arms=arms, world=world, best_of=best_of)
    assert found["single"] == found["worst"], "of one member every combination is that member"
    assert np.mean(found["mean"]["best_of_n"]) > np.mean(found["single"]["best_of_n"]) + 0.1 > 0.5
    assert np.mean(found["mean"]["ppo"]) > 0.3 and min(found["mean"]["ppo_kl"]) > 0.05


def test_length_metrics():
    margins = np.array([1.0, -2.0, 3.0, 0.5])
    lengths = np.array([[5, 4], [1, 9], [20, 2], [4, 6]])
    found = length._describe(margins, lengths)
    expected = scipy.stats.spearmanr(margins, [1, -8, 18, -2]).statistic
    assert found == {"correlation": pytest.approx(expected), "size": pytest.approx(abs(expected)), "accuracy": 0.75}
    assert length._describe(-margins, lengths)["size"] == found["size"]


@pytest.mark.slow
def test_length_bias_on_pairs_where_length_is_all_there_is(tmp_path):
    """The longer response always wins: a sum of log-ratios shows it."""
    data = REPO_ROOT.parent / "shared" / "data" / "models"
    if not data.exists():
        pytest.skip(f"needs the model files of {data}")
    words = ["once", "upon", "a", "time", "there", "was", "big", "red", "dog"]
    rng = np.random.default_rng(0)
    with open(tmp_path / "pairs.jsonl", "w") as file:
        for place in range(64):
            counts = rng.integers(9, 14), rng.integers(2, 5)
            long, short = (" ".join(rng.choice(words, count)) + "." for count in counts)
            row = dict(prompt=f"Story {place}: ", chosen=long, rejected=short)
            file.write(json.dumps(row) + "\n")
    found = run(
        "length_bias",
        seeds=(0,),
        arms=("dpo",),
        data=dict(name="jsonl", path=str(tmp_path / "pairs.jsonl"), kind="pairs", data_dir=str(tmp_path / "tfds")),
        checkpoint=str(data / "stories260K.bin"),
        tokenizer_path=str(data / "tok512.bin"),
        prompt_length=16,
        completion_length=32,
        held_out=24,
        batch_size=8,
        steps=10,
    )
    assert min(found["dpo"]["accuracy"]) > 0.8 and min(found["dpo"]["correlation"]) > 0.0


def test_every_study_is_offered():
    assert {"label_noise", "length_bias", "last_iterate"} <= set(studies.__all__)
