"""The studies of policy gradients: their worlds against sums by hand, and that a wrong loss gives another verdict."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from experiments.ablation import cli
from experiments.studies import policy_gradients, policy_learning, policy_length
from experiments.studies.base import seed_keys
from experiments.studies.policy_world import Layout, Recipe, collect, make_method, rows_of, sample, score
from rl_jax.losses import aggregate, policy


def run(key: str, *, seeds=(0, 1), arms: tuple[str, ...] = (), **settings) -> dict:
    """arm -> metric -> [S] of the study at its smoke size, of some arms, with other settings where they are given."""
    paper = cli.load(key, smoke=True)
    paper.seeds = tuple(seeds)
    with paper.settings.unlocked():
        if arms:
            paper.settings.arms = {name: paper.settings.arms[name] for name in arms}
        paper.settings.update(settings)
    values, curves, _ = cli.run_study(paper)
    assert all(np.isfinite(row).all() and len(row) == len(seeds) for arm in values.values() for row in arm.values())
    assert all(set(lines) == set(values) for lines in curves.values()), "a line an arm"
    return values


def softmax(x):
    return np.exp(x) / np.exp(x).sum(axis=-1, keepdims=True)


# --- The world -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_every_completion_has_its_probability():
    layout = Layout(3, 3)
    logits = np.random.default_rng(0).normal(size=(2, layout.contexts, 3)).astype(np.float32)
    tokens = np.array(list(itertools.product(range(3), repeat=3)))
    np.testing.assert_array_equal(layout.completions(), tokens)
    np.testing.assert_array_equal(layout.completion_of(jnp.asarray(tokens)), np.arange(27))
    expected = np.zeros((2, 27))
    for p, (i, row) in itertools.product(range(2), enumerate(tokens)):
        place = 0  # of the context among all prefixes: the empty one, those of one token, those of two
        for t, token in enumerate(row):
            expected[p, i] += np.log(softmax(logits[p, place])[token])
            place = 1 + token if t == 0 else 4 + 3 * row[0] + token

    @jax.jit  # op by op it takes a second
    def of_all(logits, tokens):
        found, scores = layout.log_probs(logits), score(logits, rows_of(jnp.ones(27, jnp.int32), tokens), layout)
        return found, scores, layout.log_probs(policy_gradients._table_of(found, layout))

    found, scores, again = of_all(jnp.asarray(logits), jnp.asarray(tokens))
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    np.testing.assert_allclose(scores.log_probs.sum(axis=1), expected[1], rtol=1e-5)
    first = softmax(logits[1, 0])
    np.testing.assert_allclose(scores.entropy[:, 0], -np.sum(first * np.log(first)), rtol=1e-5)
    np.testing.assert_allclose(again, expected, atol=1e-5)


@pytest.mark.slow
def test_samples_follow_the_policy():
    layout = Layout(3, 2)
    logits = jax.random.normal(jax.random.key(0), (1, layout.contexts, 3))
    rollout = jax.jit(lambda key: sample(key, logits, jnp.zeros(20_000, jnp.int32), layout))(jax.random.key(1))
    shares = np.bincount(layout.completion_of(rollout.batch.tokens[:, 1:]), minlength=9) / 20_000
    np.testing.assert_allclose(shares, np.exp(layout.log_probs(logits)[0]), atol=0.015)
    assert rollout.completion_mask.all() and rollout.finished.all() and not rollout.truncated.any()


@pytest.mark.slow
def test_completions_end_with_their_eos():
    layout = Layout(4, 6, sees="first", eos=0)
    logits = policy_length.start_logits(0.3, jnp.array([0.5, 0.5]), 6)
    rollout = jax.jit(lambda key: sample(key, logits, jnp.zeros(4000, jnp.int32), layout))(jax.random.key(1))
    tokens, mask = np.asarray(rollout.batch.tokens[:, 1:]), np.asarray(rollout.completion_mask)
    assert set(tokens[:, 0]) == {policy_length.RIGHT, policy_length.WRONG} and tokens[:, 1:].max() == 1
    lengths = mask.sum(axis=1)
    for row in (tokens[i, :n] for i, n in enumerate(lengths)):
        assert 0 not in row[:-1] and (row[-1] == 0 or len(row) == 6)
    np.testing.assert_array_equal(rollout.finished, tokens[np.arange(4000), lengths - 1] == 0)
    expected = 1 + sum(0.7**t for t in range(5))
    np.testing.assert_allclose(policy_length.mean_length(logits, policy_length.WRONG, 6), expected, rtol=1e-5)
    assert lengths.mean() == pytest.approx(expected, abs=0.1)


def test_slots_are_those_of_credit_and_objective():
    credit, objective = make_method({"advantage": "leave_one_out", "surrogate": {"fn": "cispo", "ratio_max": 2.0}})
    assert credit.advantage.__name__ == "leave_one_out" and objective.surrogate.keywords == {"ratio_max": 2.0}
    assert objective.kl_coef == 0.0
    with pytest.raises(ValueError, match="unknown slots of a method: learning_rate"):
        make_method({"learning_rate": 1.0})


@pytest.mark.slow
def test_a_fork_is_as_rare_as_it_is_said_to_be():
    layout = Layout(4, 2)
    made = policy_learning.make_answers(
        jax.random.key(0), layout, prompts=3, logit_scale=2.0, right=(0.3, 0.3), sure=False,
        fork=dict(probability=0.01, right=0.9),
    )  # fmt: skip
    np.testing.assert_allclose(softmax(np.asarray(made.logits[:, 0]))[:, -1], 0.01, rtol=1e-4)
    np.testing.assert_allclose(made.rates, np.tile(np.repeat([0.3, 0.9], [12, 4]), (3, 1)), rtol=1e-5)


@pytest.mark.slow
def test_the_samplers_noise_knows_nothing_of_the_right_answers():
    """A key that drew the answers would give the right ones low noise, every one of them."""
    key = jax.random.key(0)
    made = policy_learning.make_answers(key, Layout(6, 2), prompts=8, logit_scale=1.0, right=(0.3, 0.3))
    rates = np.asarray(made.rates).ravel()
    noise = np.asarray(policy_learning.noise_of(key, made.logits.shape)).ravel()[: rates.size]
    both = min(noise.size, rates.size)
    assert both > 200 and abs(np.corrcoef(noise[:both], rates[:both])[0, 1]) < 0.2


@pytest.mark.slow
def test_no_prompt_is_without_a_right_answer_if_one_is_asked_for():
    settings = dict(prompts=40, logit_scale=1.0, right=(0.01, 0.2))
    plain, made = (
        policy_learning.make_answers(jax.random.key(0), Layout(4, 2), at_least_one=asked, **settings)
        for asked in (False, True)
    )
    counts = np.asarray(plain.rates).sum(axis=1)
    assert (counts == 0).sum() > 5, "there are prompts to mend"
    np.testing.assert_array_equal(np.asarray(made.rates).sum(axis=1), np.maximum(counts, 1))
    np.testing.assert_array_equal(np.asarray(made.rates)[counts > 0], np.asarray(plain.rates)[counts > 0])
    assert len(set(np.asarray(made.rates)[counts == 0].argmax(axis=1))) > 2, "not always the same completion"


# --- Gradients, exactly ----------------------------------------------------------------------------------------------


def _moments(logits, rewards, advantages, group_size):
    """tr Cov / |E g|^2 of 1/G sum A (e_a - pi), and E g, over every group of a bandit's actions."""
    pi = softmax(logits)
    total, square = np.zeros_like(pi), 0.0
    for group in itertools.product(range(len(pi)), repeat=group_size):
        group = np.array(group)
        estimate = np.mean(advantages(rewards[group])[:, None] * (np.eye(len(pi))[group] - pi), axis=0)
        total += np.prod(pi[group]) * estimate
        square += np.prod(pi[group]) * np.sum(estimate**2)
    return (square - total @ total) / (total @ total), total


@pytest.mark.slow
def test_noise_and_bias_are_those_of_all_groups():
    found = run(
        "rloo_variance", arms=("rloo", "grpo"), vocab=3, length=1, group_size=3, samples=6000,
        offset=2.0, learning=dict(prompts=1, groups=1, group_size=3, steps=1),
    )  # fmt: skip
    rules = {
        "rloo": lambda r: 1.5 * (r - r.mean()),
        "grpo": lambda r: (r - r.mean()) / (r.std(ddof=1) + 1e-6) if np.ptp(r) > 1e-6 else 0 * r,
    }
    for seed, key in enumerate(seed_keys((0, 1))):
        key_logits, key_rewards = jax.random.split(key)
        logits = np.asarray(jax.random.normal(key_logits, (1, 1, 3)), np.float64)[0, 0]
        rewards = np.asarray(2.0 + jax.random.normal(key_rewards, (1, 3)), np.float64)[0]
        pi = softmax(logits)
        exact = pi * (rewards - pi @ rewards)
        for arm, rule in rules.items():
            noise, mean = _moments(logits, rewards, rule, 3)
            got = {name: found[arm][name][seed] for name in ("noise", "bias", "bias_squared", "cosine")}
            slack = np.sqrt(noise / 6000) * np.linalg.norm(mean) / np.linalg.norm(exact)
            assert got["noise"] == pytest.approx(noise, rel=0.25)
            assert got["bias"] == pytest.approx(np.linalg.norm(mean - exact) / np.linalg.norm(exact), abs=4 * slack)
            assert got["bias"] ** 2 - got["bias_squared"] == pytest.approx(slack**2, rel=0.3), "what chance adds"
            assert got["cosine"] > 0.9


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["group_relative", "group_centered", "leave_one_out"])
def test_slopes_of_questions_are_sums_over_binomials(rule):
    size, p = 4, 0.2
    expected = 0.0
    for right in range(size + 1):
        r = np.array([1.0] * right + [0.0] * (size - right))
        centered = r - r.mean()
        scales = {"group_relative": 1 / (r.std(ddof=1) + 1e-6), "group_centered": 1, "leave_one_out": size / (size - 1)}
        advantages = centered * (scales[rule] if np.ptp(r) else 0.0)
        expected += scipy.stats.binom.pmf(right, size, p) * np.mean(advantages * (r - p)) / (p * (1 - p))
    method = make_method({"advantage": rule})
    found = jax.jit(lambda p: policy_length.slope_on_question(method, p, size))(jnp.float32(p))
    np.testing.assert_allclose(found, expected, rtol=1e-4)


@pytest.mark.slow
def test_what_each_kl_term_pulls_at():
    """On a bandit KL(pi || ref) has the slope pi (d - KL), d = log pi - log ref, and KL(ref || pi) pi - ref."""
    layout, (logits, ref) = Layout(4, 1), np.random.default_rng(0).normal(size=(2, 1, 1, 4)).astype(np.float32)
    pi, base = softmax(logits[0, 0]), softmax(ref[0, 0])
    d = np.log(pi / base)
    reverse, forward = pi * (d - pi @ d), pi - base

    def gradient(method, in_reward):
        pull = jax.jit(lambda x, y: policy_gradients._gradient_of_kl(x, y, method, in_reward, layout))
        return pull(jnp.asarray(logits), jnp.asarray(ref))

    expected = {"k1": 0 * pi, "k2": reverse, "ratio_k3": reverse, "k3": forward}
    for name, slope in expected.items():
        method = make_method(dict(kl=name, surrogate="reinforce"))
        found = gradient(method, False)
        np.testing.assert_allclose(found[0, 0], slope, atol=1e-5)
    for name, slope in {"k1": reverse, "k2": pi * (d**2 - pi @ d**2) / 2}.items():
        method = make_method(dict(reward_kl=name, surrogate="reinforce"))
        found = gradient(method, True)
        np.testing.assert_allclose(found[0, 0], slope, atol=1e-5)


@pytest.mark.slow
def test_a_kl_in_the_reward_leads_to_the_optimum():
    recipe = dict(groups=8, group_size=8, minibatches=1, steps=150, learning_rate=1.0)
    found = run("kl_placement", arms=("k1_reward",), vocab=3, recipe=recipe)["k1_reward"]
    np.testing.assert_allclose([found["pull"], found["cosine"]], 1.0, atol=1e-4)
    assert max(found["kl_to_optimum"]) < 0.1 < min(found["kl"])


# --- Learning, and what a wrong loss does to the verdict -------------------------------------------------------------


def _verdict(values, **statement) -> str:
    return cli.judgements(values, [statement])[0]["verdict"]


@pytest.mark.slow
def test_lengths_hang_on_the_aggregation(monkeypatch):
    """And where Dr. GRPO's aggregation is broken into GRPO's, its answers change their lengths as well."""
    recipe = dict(groups=2, group_size=8, minibatches=1, steps=40, learning_rate=8.0)
    small = dict(seeds=range(6), length=10, prompts=2, recipe=recipe)
    found = run("dr_grpo_length", arms=("grpo", "dr_grpo"), **small)
    grows = dict(metric="wrong", increasing=("dr_grpo", "grpo"), by=0.0)
    assert _verdict(found, **grows) == "reproduced"
    assert _verdict(found, metric="right", increasing=("grpo", "dr_grpo"), by=0.0) == "reproduced"
    still = dict(metric="wrong", arm="dr_grpo", at_least=-0.1, at_most=0.1)
    assert _verdict(found, **still) == "reproduced"

    @functools.wraps(aggregate.seq_mean_token_sum_norm)
    def by_rows(per_token, mask, *, max_length):
        return aggregate.seq_mean_token_mean(per_token, mask)

    monkeypatch.setattr(aggregate, "seq_mean_token_sum_norm", by_rows)
    assert _verdict(run("dr_grpo_length", arms=("dr_grpo",), **small), **still) == "not reproduced"


@pytest.mark.slow
def test_swapped_clip_bounds_turn_the_verdict_round(monkeypatch):
    small = dict(seeds=range(8), arms=("upper_only", "lower_only"), vocab=4, length=1, recipe=dict(steps=24))
    claim = dict(metric="entropy", increasing=("upper_only", "lower_only"), by=0.0)
    assert _verdict(run("clip_entropy", **small), **claim) == "reproduced"
    right = policy.clipped_surrogate

    @functools.wraps(right)
    def swapped(*arrays, clip_low, clip_high):
        return right(*arrays, clip_low=clip_high, clip_high=clip_low)

    monkeypatch.setattr(policy, "clipped_surrogate", swapped)
    assert _verdict(run("clip_entropy", **small), **claim) == "not reproduced"


@pytest.mark.slow
def test_stale_samples_and_drawn_groups(monkeypatch):
    """At smoke size, every way of collecting a step; and a loss of the wrong sign unlearns."""
    small = dict(vocab=3, length=2, world=dict(prompts=4, logit_scale=1.0, right=(0.1, 0.5)), sampler_noise=0.5)
    small["ks"] = (1, 4)
    recipe = dict(groups=4, group_size=4, minibatches=2, steps=15, learning_rate=4.0)
    arms = {
        "dynamic": dict(recipe=dict(candidates=8)),
        "stale": dict(recipe=dict(lag=2, old="behavior")),
        "noisy": dict(slots=dict(surrogate="reinforce", behavior_weight="truncated"), sampler="noisy"),
    }
    found = policy_learning.answers_by_policy_gradient((0, 1), arms=arms, recipe=recipe, **small).values
    for arm, row in found.items():
        assert all(np.isfinite(x).all() for x in row.values())
        same = np.allclose(row["reward_at_budget"], row["reward"])
        assert same == (arm != "dynamic"), "who draws more samples has learned less from as many"
        np.testing.assert_allclose(row["pass_1"], row["reward"], rtol=1e-5)  # 1 - (1 - p)^1
        assert np.all(row["pass_4"] > row["start_pass_4"]) and np.all(row["pass_4"] >= row["pass_1"])
    right = policy.reinforce
    negated = functools.wraps(right)(lambda *arrays: right(*arrays)._replace(loss=-right(*arrays).loss))
    monkeypatch.setattr(policy, "reinforce", negated)
    wrong = policy_learning.answers_by_policy_gradient((0, 1), arms={"noisy": arms["noisy"]}, recipe=recipe, **small)
    assert all(wrong.values["noisy"]["reward"] < found["noisy"]["reward"] - 0.1)


@pytest.mark.slow
def test_dynamic_sampling_takes_the_first_groups_that_differ():
    layout = Layout(2, 1)
    rates = jnp.array([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0], [0.0, 1.0]])  # the prompts 1, 3 and 4 teach
    recipe = Recipe(
        reward=lambda key, prompts, rollout: rates[prompts, rollout.batch.tokens[:, 1]],
        groups=2, group_size=32, minibatches=1, steps=1, learning_rate=1.0, candidates=5,
    )  # fmt: skip
    step = jax.jit(lambda key: collect(key, jnp.zeros((5, 1, 2)), recipe, layout))
    for seed in range(5):
        rollout, rewards, drawn = step(jax.random.key(seed))
        assert set(np.unique(rollout.batch.tokens[:, 0])) <= {1, 3, 4}
        assert np.ptp(rewards.reshape(2, 32), axis=1).min() == 1
        chosen = list(np.asarray(jax.random.permutation(jax.random.split(jax.random.key(seed), 3)[0], 5)))
        teaching = [place for place, prompt in enumerate(chosen) if prompt in (1, 3, 4)]
        assert float(drawn) == 32 * (teaching[1] + 1)
