"""What becomes of a prompt's samples: pairs and lists, win rates, references that move, mixtures of two policies."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax.core.binding import bind
from rl_jax.models.mixture import make_mixture
from rl_jax.models.transformer.model import TransformerConfig, make_transformer
from rl_jax.rollout.lm.engine import make_generate
from rl_jax.selection import candidate_values, pair_selection, reference_policy
from rl_jax.training.scoring import make_score

KEY = jax.random.key(3)
REWARDS = jnp.array([[0.1, 0.9, 0.5, 0.4], [2.0, 2.0, 2.0, 2.0], [0.3, -1.0, 0.7, 0.7], [1.0, 1.0, 0.0, 0.0]])
PAIRS = [pair_selection.first_pair, pair_selection.random_pair, pair_selection.best_worst, pair_selection.best_random]
many = functools.partial(jnp.tile, REWARDS[:1], (4000, 1))


@pytest.mark.parametrize("choose", PAIRS)
@pytest.mark.parametrize("ties", ["drop", "first"])
def test_pairs_are_two_candidates_the_better_one_first(choose, ties):
    choose = jax.jit(functools.partial(choose, ties=ties))
    for seed in range(20):
        found = choose(REWARDS, jax.random.key(seed))
        assert found.indices.shape == found.present.shape == (4, 1, 2) and found.indices.dtype == jnp.int32
        for rewards, (better, worse), present in zip(
            REWARDS.tolist(), found.indices[:, 0].tolist(), found.present[:, 0].tolist(), strict=True
        ):
            assert better != worse and rewards[better] >= rewards[worse]
            tie = rewards[better] == rewards[worse]
            assert present == [ties == "first" or not tie] * 2
            assert not tie or better < worse


def test_first_pair_looks_at_two_only():
    found = pair_selection.first_pair(REWARDS, KEY)
    np.testing.assert_array_equal(found.indices[:, 0], [[1, 0], [0, 1], [0, 1], [0, 1]])
    assert found.present.all()


def test_best_worst():
    found = pair_selection.best_worst(REWARDS, KEY)
    np.testing.assert_array_equal(found.indices[:, 0], [[1, 0], [0, 3], [2, 1], [0, 3]])
    np.testing.assert_array_equal(found.present[:, 0, 0], [True, False, True, True])


def test_best_random_draws_each_of_the_others():
    found = pair_selection.best_random(many(), KEY).indices[:, 0]
    assert (found[:, 0] == 1).all()
    np.testing.assert_allclose(np.bincount(found[:, 1], minlength=4) / 4000, [1 / 3, 0, 1 / 3, 1 / 3], atol=0.03)


def test_random_pair_draws_each_pair():
    found = np.sort(pair_selection.random_pair(many(), KEY).indices[:, 0], axis=1)
    counts = np.bincount(found @ np.array([4, 1]), minlength=16)
    np.testing.assert_allclose(counts[[1, 2, 3, 6, 7, 11]] / 4000, np.full(6, 1 / 6), atol=0.03)


@pytest.mark.parametrize("temperature", [1.0, 0.2])
def test_bradley_terry_labels_are_drawn(temperature):
    rewards = jnp.tile(jnp.array([[0.8, 0.5]]), (8000, 1))
    found = pair_selection.bradley_terry(rewards, KEY, temperature=temperature)
    expected = 1 / (1 + np.exp(-0.3 / temperature))
    np.testing.assert_allclose((found.indices[:, 0, 0] == 0).mean(), expected, atol=0.02)
    assert (np.sort(found.indices[:, 0], axis=1) == [0, 1]).all() and found.present.all()


def test_ranking_is_the_whole_list_by_falling_reward():
    found = pair_selection.ranking(REWARDS, KEY)
    np.testing.assert_array_equal(found.indices[:, 0], [[1, 2, 3, 0], [0, 1, 2, 3], [2, 3, 0, 1], [0, 1, 2, 3]])


def test_data_first_is_the_last_candidate_before_a_sample():
    with pytest.raises(ValueError):
        pair_selection.data_first(many()[:, :1], KEY)
    found = pair_selection.data_first(many(), KEY).indices[:, 0]
    assert (found[:, 0] == 3).all()
    np.testing.assert_allclose(np.bincount(found[:, 1]) / 4000, np.full(3, 1 / 3), atol=0.03)


def rejection_loop(rewards, rng, num_samples, beta):
    """Algorithm 1 of arXiv 2309.06657, line by line."""
    candidates, accepted = dict(enumerate(rewards)), []
    while len(accepted) < num_samples:
        highest, to_remove = max(candidates.values()), []
        for i, reward in candidates.items():
            if rng.uniform() >= np.exp((reward - highest) / beta):
                continue
            accepted.append(i)
            to_remove.append(i)
            if len(accepted) == num_samples:
                break
        for i in to_remove:
            candidates.pop(i)
    return accepted


def test_rejection_sampling_accepts_as_algorithm_1_does():
    rewards, draws = [0.1, 0.9, 0.5, 0.4, 0.85], 6000
    found = pair_selection.rejection_sample(jnp.tile(jnp.array([rewards]), (draws, 1)), KEY, num_samples=2, beta=0.3)
    rng = np.random.default_rng(0)
    expected = np.array([rejection_loop(rewards, rng, 2, 0.3) for _ in range(draws)])
    for accepted in (found, expected):
        assert (accepted[:, 0] != accepted[:, 1]).all()
    codes = [np.bincount(np.asarray(x) @ np.array([5, 1]), minlength=25) / draws for x in (found, expected)]
    np.testing.assert_allclose(codes[0], codes[1], atol=0.025)
    # In the first round alone, the chance of the first candidate is closed form.
    np.testing.assert_allclose((found[:, 0] == 0).mean(), np.exp(-0.8 / 0.3), atol=0.01)


def test_rejection_sampling_at_its_limits():
    equal = jnp.zeros((3, 6))
    np.testing.assert_array_equal(  # all are accepted at once, in order
        pair_selection.rejection_sample(equal, KEY, num_samples=4, beta=0.5), np.tile(np.arange(4), (3, 1))
    )
    best = pair_selection.rejection_sample(many(), KEY, num_samples=2, beta=1e-6)
    np.testing.assert_array_equal(best, np.tile([1, 2], (4000, 1)))
    every = pair_selection.rejection_sample(many(), KEY, num_samples=4, beta=0.5)
    np.testing.assert_array_equal(np.sort(every, axis=1), np.tile(np.arange(4), (4000, 1)))
    with pytest.raises(ValueError, match="num_samples=3 must be even and at most the 4"):
        pair_selection.rejection_sample(REWARDS, KEY, num_samples=3, beta=0.5)


def test_rejection_sampled_pairs_use_each_accepted_candidate_once():
    rewards = jnp.tile(jnp.arange(8.0)[None], (50, 1))
    found = pair_selection.rejection_sampled(rewards, KEY, num_samples=6, beta=4.0)
    assert found.indices.shape == (50, 3, 2)
    accepted = pair_selection.rejection_sample(rewards, jax.random.split(KEY)[0], num_samples=6, beta=4.0)
    np.testing.assert_array_equal(np.sort(found.indices.reshape(50, 6)), np.sort(accepted))
    assert (found.indices[..., 0] > found.indices[..., 1]).all() and found.present.all()
    assert len({tuple(row) for row in found.indices.reshape(50, 6).tolist()}) > 10  # paired at random


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (dict(fn="best_wurst"), "no function 'best_wurst'; it has: .*best_worst"),
        (dict(fn="best_worst", ties="keep"), "ties='keep' is none of drop, first"),
        (dict(fn="best_worst", tie="drop"), "no keyword 'tie'"),
    ],
)
def test_unknown_words_are_refused(spec, said):
    with pytest.raises(ValueError, match=said):
        bind(spec, pair_selection)(REWARDS, KEY)


def test_one_candidate_makes_no_pair():
    with pytest.raises(ValueError, match="1 candidates per prompt"):
        pair_selection.best_worst(REWARDS[:, :1], KEY)


def test_how_many_candidates_each_choice_needs():
    """Two for a pair and one for a list; rewards are floats."""
    pairs = "first_pair", "random_pair", "best_worst", "best_random", "bradley_terry", "data_first", "given_pair"
    for name, count in (dict.fromkeys(pairs, 2) | dict.fromkeys(("ranking", "best"), 1)).items():
        choose = getattr(pair_selection, name)
        assert jax.eval_shape(choose, jnp.zeros((1, count)), KEY).indices.shape[0] == 1
        with pytest.raises(ValueError, match=f"{count - 1} candidates per prompt; this selection needs {count} "):
            choose(jnp.zeros((1, count - 1)), KEY)
        with pytest.raises(AssertionError):
            choose(jnp.zeros((1, count), int), KEY)
    refused = (0, 2, "0 candidates per"), (1, 2, "most the 1 cand"), (4, 0, "=0 must"), (4, 6, "=6 must")
    for count, number, said in refused:
        with pytest.raises(ValueError, match=said):
            pair_selection.rejection_sample(jnp.zeros((1, count)), KEY, num_samples=number, beta=0.5)


def test_published_numbers_of_choices():
    """8 accepted with beta .5; labels of temperature 1."""
    rewards = jax.random.normal(jax.random.key(1), (40, 10))
    found = pair_selection.rejection_sampled(rewards, KEY)
    by_beta = {beta: pair_selection.rejection_sampled(rewards, KEY, num_samples=8, beta=beta) for beta in (0.5, 0.55)}
    np.testing.assert_array_equal(found.indices, by_beta[0.5].indices)
    assert (found.indices != by_beta[0.55].indices).any() and found.present.all()
    drawn = pair_selection.bradley_terry(many(), KEY).indices
    np.testing.assert_array_equal(drawn, pair_selection.bradley_terry(many(), KEY, temperature=1.0).indices)
    assert (drawn != pair_selection.bradley_terry(many(), KEY, temperature=1.1).indices).any()


def test_win_rates_by_hand():
    found = candidate_values.win_rate(jnp.array([[0.0, 1.0, 3.0]]), jnp.zeros((1, 0)), temperature=2.0)
    sigma = lambda x: 1 / (1 + np.exp(-x / 2.0))  # noqa: E731
    expected = [(0.5 + sigma(-1) + sigma(-3)) / 3, (sigma(1) + 0.5 + sigma(-2)) / 3, (sigma(3) + sigma(2) + 0.5) / 3]
    np.testing.assert_allclose(found[0], expected, rtol=1e-6)
    found = candidate_values.win_rate(jnp.array([[0.0, 0.5, 1.5]]), jnp.zeros((1, 0)))  # temperature 1
    np.testing.assert_allclose(found[0], expected, rtol=1e-6)
    np.testing.assert_allclose(
        candidate_values.win_rate(REWARDS, REWARDS).mean(axis=1), 0.5, atol=1e-6
    )  # a zero-sum game


def test_win_rate_without_self_is_the_rank_of_a_total_order():
    found = candidate_values.win_rate(REWARDS[:1], REWARDS[:1], temperature=1e-4, with_self=False)
    np.testing.assert_allclose(found[0], [0, 1, 2 / 3, 1 / 3], atol=1e-6)
    with pytest.raises(ValueError, match="two or more candidates per prompt"):
        candidate_values.win_rate(REWARDS[:, :1], REWARDS, with_self=False)


def test_win_rates_of_a_judge_that_goes_round():
    wheel = jnp.array([[[0.5, 1.0, 0.0], [0.0, 0.5, 1.0], [1.0, 0.0, 0.5]]])  # rock, paper, scissors
    np.testing.assert_allclose(candidate_values.win_rates(wheel), [[0.5] * 3])
    np.testing.assert_allclose(candidate_values.win_rates(wheel, with_self=False), [[0.5] * 3])


def test_win_rates_with_and_without_oneself():
    uneven = jnp.array([[[0.5, 0.9], [0.1, 0.5]]])
    np.testing.assert_allclose(candidate_values.win_rates(uneven), [[0.7, 0.3]], rtol=1e-6)
    np.testing.assert_allclose(candidate_values.win_rates(uneven, with_self=False), [[0.9, 0.1]], rtol=1e-6)
    with pytest.raises(AssertionError):
        candidate_values.win_rates(uneven[:, :, :1])
    found = candidate_values.preferences(jnp.array([[0.0]]), jnp.array([[1.0, -2.0]]))
    np.testing.assert_allclose(found, [[[1 / (1 + np.e), 1 / (1 + np.exp(-2.0))]]], rtol=1e-5)


def test_win_rate_against_opponents():
    found = candidate_values.win_rate_against(jnp.array([[0.0, 1.0]]), jnp.array([[1.0, 0.0, 1.0]]))
    sigma = 1 / (1 + np.exp(-1.0))
    np.testing.assert_allclose(found[0], [(2 * (1 - sigma) + 0.5) / 3, (1 + sigma) / 3], rtol=1e-6)
    with pytest.raises(ValueError, match="set sample.opponents.samples"):
        candidate_values.win_rate_against(REWARDS, jnp.zeros((4, 0)))


def params(*values):
    return {"a": jnp.array(values), "b": {"c": jnp.full((2,), sum(values))}}


def test_schedules():
    start, policy = params(1.0, 2.0), params(3.0, 6.0)
    for schedule in (reference_policy.fixed, reference_policy.per_iteration, reference_policy.moving_average):
        assert reference_policy.start(schedule, start).trained == ()
    begun = reference_policy.start(reference_policy.fixed, start)
    assert reference_policy.fixed(begun, policy, 1) == (begun, policy)
    every = functools.partial(reference_policy.per_iteration, every=2)
    np.testing.assert_array_equal(every(begun, policy, 1)[0].ref["a"], start["a"])
    np.testing.assert_array_equal(every(begun, policy, 2)[0].ref["a"], policy["a"])
    soft = reference_policy.moving_average(begun, policy, 1, rate=0.25)[0].ref
    np.testing.assert_allclose(soft["a"], [1.5, 3.0])
    np.testing.assert_allclose(soft["b"]["c"], [4.5, 4.5])
    hard = reference_policy.moving_average(begun, policy, 4, rate=1.0, every=4)[0].ref
    np.testing.assert_array_equal(hard["a"], policy["a"])
    np.testing.assert_array_equal(reference_policy.moving_average(begun, policy, 3, every=4)[0].ref["a"], start["a"])


def test_schedules_by_default():
    """Each step; .6 of the policy is mixed in; extrapolation goes .3 further than the last iteration came."""
    first, policy, other = params(1.0, 2.0), params(3.0, 6.0), params(5.0, 5.0)
    begun = reference_policy.start(reference_policy.extrapolated, first, other)
    np.testing.assert_array_equal(begun.ref["a"], other["a"])
    np.testing.assert_array_equal(begun.trained["a"], first["a"])
    np.testing.assert_array_equal(reference_policy.per_iteration(begun, policy, 3)[0].ref["a"], policy["a"])
    soft = reference_policy.moving_average(begun, policy, 3)[0].ref
    np.testing.assert_allclose(soft["a"], [0.4 * 5 + 0.6 * 3, 0.4 * 5 + 0.6 * 6], rtol=1e-6)
    moved, ahead = reference_policy.extrapolated(begun, policy, 3)
    np.testing.assert_allclose(ahead["a"], [1.3 * 3 - 0.3, 1.3 * 6 - 0.6], rtol=1e-6)
    np.testing.assert_array_equal(moved.ref["a"], ahead["a"])
    np.testing.assert_array_equal(moved.trained["a"], policy["a"])
    assert reference_policy.extrapolated(begun, policy, 3, every=2) == (begun, policy)
    tenth = reference_policy.soup([params(1.0)] * 10, [0.1] * 10)  # 1 but for rounding
    np.testing.assert_allclose(tenth["a"], [1.0], rtol=1e-6)
    with pytest.raises(ValueError, match="2 sets of params need as many weights"):
        reference_policy.soup([first, policy], [1.0])


def test_a_new_reference_has_buffers_of_its_own():
    """The train step gives its state's buffers away, those of a reference must outlive it."""
    start, policy = params(1.0), params(2.0)
    taken = reference_policy.per_iteration(reference_policy.start(reference_policy.fixed, start), policy, 1)[0].ref
    moved, trained = reference_policy.extrapolated(
        reference_policy.start(reference_policy.extrapolated, start), policy, 1
    )
    for mine in (taken["a"], moved.ref["a"], moved.trained["a"], trained["a"]):
        assert mine.unsafe_buffer_pointer() != policy["a"].unsafe_buffer_pointer()
    assert moved.ref["a"].unsafe_buffer_pointer() != trained["a"].unsafe_buffer_pointer()


def test_extrapolation_of_linear_logits_is_that_of_the_policy():
    """pi ~ hat_t (hat_t / hat_{t-1})^rate, over two iterations."""
    rng = np.random.default_rng(0)
    before, first, second = ({"logits": jnp.array(rng.normal(size=5))} for _ in range(3))
    begun = reference_policy.start(reference_policy.extrapolated, before)
    schedule = functools.partial(reference_policy.extrapolated, rate=0.3)
    once, policy = schedule(begun, first, 1)
    np.testing.assert_array_equal(once.ref["logits"], policy["logits"])
    _, policy = schedule(once, second, 2)
    soft = [np.exp(np.asarray(p["logits"])) / np.exp(np.asarray(p["logits"])).sum() for p in (first, second)]
    expected = soft[1] * (soft[1] / soft[0]) ** 0.3
    np.testing.assert_allclose(jax.nn.softmax(policy["logits"]), expected / expected.sum(), rtol=1e-5)
    plain, policy = reference_policy.extrapolated(begun, first, 1, rate=0.0)
    np.testing.assert_allclose(plain.ref["logits"], first["logits"])


def test_soup():
    found = reference_policy.soup([params(1.0, 2.0), params(3.0, 6.0)], [0.75, 0.25])
    np.testing.assert_allclose(found["a"], [1.5, 3.0])
    with pytest.raises(ValueError, match="need as many weights that sum to 1"):
        reference_policy.soup([params(1.0), params(2.0)], [0.5, 0.6])
    with pytest.raises(ValueError, match="sum to 1, got"):
        reference_policy.soup([params(1.0), params(2.0)], [0.5, 0.4])
    for off in (1.05e-6, -1.05e-6):
        with pytest.raises(ValueError, match="sum to 1, got"):
            reference_policy.soup([params(1.0), params(2.0)], [0.5, 0.5 + off])


MODEL = make_transformer(
    TransformerConfig(vocab_size=11, embed_dim=16, num_layers=1, num_heads=2, num_kv_heads=1, head_dim=8, mlp_dim=16)
)


# The share is traced: one program each for all shares.
SIZES = dict(completion_length=5, group_size=3, eos_ids=(0,))
GENERATE = jax.jit(lambda share, *args: make_generate(make_mixture(MODEL, share), **SIZES)(*args))
SCORE = jax.jit(lambda share, *args: make_score(make_mixture(MODEL, share), completion_length=5)(*args).log_probs)
FORWARD = jax.jit(lambda params, batch: MODEL.unembed(params, MODEL.apply(params, batch))[:, 3:-1])
INIT = jax.jit(make_mixture(MODEL, 0.5).init)


@pytest.mark.parametrize("share", [0.3, 1.0])
def test_the_mixture_samples_what_it_scores(share):
    """Prefill and decode with two caches agree with the forward, and the forward with the formula."""
    both = INIT(KEY)
    prompts, mask = np.arange(1, 9, dtype=np.int32).reshape(2, 4), np.ones((2, 4), bool)
    rollout = GENERATE(share, both, prompts, mask, KEY)
    found = SCORE(share, both, rollout.batch)
    kept = np.asarray(rollout.completion_mask)
    found = np.asarray(found)
    np.testing.assert_allclose(np.asarray(rollout.sampled_log_probs)[kept], found[kept], atol=1e-5)
    logits = [np.asarray(FORWARD(both[name], rollout.batch), np.float64) for name in ("policy", "reference")]
    policy, reference = (np.exp(x) / np.exp(x).sum(axis=-1, keepdims=True) for x in logits)
    mixed = policy ** (1 - share) * reference**share
    chosen = np.take_along_axis(mixed, np.asarray(rollout.batch.tokens)[:, 4:, None], axis=2)[..., 0]
    np.testing.assert_allclose(found[kept], np.log(chosen / mixed.sum(axis=-1))[kept], atol=1e-5)


def test_a_given_pair_goes_before_what_was_sampled():
    """The data's two responses are the last of the candidates, in their order; no reward is looked at."""
    found = pair_selection.given_pair(jnp.asarray([[5.0, 1.0, 0.0, 9.0], [0.0, 0.0, 0.0, 0.0]]), jax.random.key(0))
    np.testing.assert_array_equal(found.indices, np.tile([2, 3, 0, 1], (2, 1, 1)))
    assert found.present.all()
