"""Policy gradients on wrong rewards and towards a target, and what the common loop remembers: sums by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.studies import policy_world, proxies
from experiments.studies.policy_world import Layout, Recipe, make_method, train
from rl_jax.core import trackers
from rl_jax.core.binding import bind

LAYOUT = Layout(3, 2)


@pytest.mark.slow
def test_greedy_completions_take_the_likeliest_token_each_time():
    logits = jax.random.normal(jax.random.key(0), (2, LAYOUT.contexts, 3))
    seen = []

    def reward(key, prompts, rollout):
        seen.append(np.asarray(rollout.batch.tokens[:, 1:]))
        return LAYOUT.completion_of(rollout.batch.tokens[:, 1:]).astype(jnp.float32)

    named = policy_world.greedy_rewards(reward, LAYOUT)(jax.random.key(1), logits, jnp.array([0, 1, 1]))
    table = np.asarray(logits)
    for prompt, row, paid in zip((0, 1, 1), seen[0], named["greedy_rewards"], strict=True):
        first = table[prompt, 0].argmax()
        assert row.tolist() == [first, table[prompt, 1 + first].argmax()] and paid == 3 * row[0] + row[1]


@pytest.mark.parametrize(
    ("spec", "name", "expected"),
    [  # successes and failures begin with a half each; quantiles .2 and .8 of the bundles' sums 1 and .5, one update
        (dict(fn="beta_values", low=1.0, high=1.0), "baseline", [0.75, 0.25, 0.75]),
        (dict(fn="rl_jax.advantages.memory:bundle_quantiles", bundle_size=2), "score_quantiles", [0.6, 0.9, 1.0]),
    ],
)
def test_what_a_step_leaves_is_what_the_next_one_gets(spec, name, expected):
    tracker = policy_world.make_tracker(spec, num_prompts=3, group_size=1)
    prompts, rewards = jnp.array([0, 2, 1]), jnp.array([1.0, 0.0, 0.5])
    state = policy_world.remember(tracker, tracker.init(), prompts, rewards, jnp.zeros(3))
    found = policy_world.remembered(state, jnp.array([0, 2, 0]))
    assert set(found) == {name}
    np.testing.assert_allclose(found[name], expected, rtol=1e-6)
    assert policy_world.make_tracker(None) is None


@pytest.mark.slow
def test_an_advantage_with_a_memory_and_adam_that_reads_no_scale():
    """Before anything is seen the value is 1/2; ten times R - 1/2 without a memory is the same step of Adam."""
    logits = jax.random.normal(jax.random.key(0), (2, LAYOUT.contexts, 3))

    def one_step(advantage, scale, tracker):
        def reward(key, prompts, rollout):
            right = (rollout.batch.tokens[:, 1] == 0).astype(jnp.float32)
            return right if tracker else scale * (right - 0.5)

        recipe = Recipe(reward, groups=2, group_size=4, minibatches=1, steps=1, learning_rate=0.1)
        recipe = recipe._replace(optimizer="adam", tracker=tracker)
        method = make_method(dict(advantage=advantage, surrogate="reinforce"))
        return train(jax.random.key(1), logits, method, recipe, LAYOUT, lambda x: x)[0]

    tracker = bind(dict(fn="beta_values", num_prompts=2), trackers)()
    found = jax.jit(lambda: (one_step("tracked_baseline", 1.0, tracker), one_step("no_baseline", 10.0, None)))()
    np.testing.assert_allclose(*found, atol=1e-4)
    assert np.abs(found[0] - logits).max() == pytest.approx(0.1, rel=1e-3)


@pytest.mark.slow
def test_the_probabilities_of_a_policy_that_sees_places_only():
    layout = Layout(3, 2, sees="place")
    logits = jax.random.normal(jax.random.key(0), (1, 2, 3))
    first, second = np.asarray(jax.nn.softmax(logits[0]))
    found = np.exp(proxies.log_probs_of_all(logits, layout))
    np.testing.assert_allclose(found, np.outer(first, second).ravel(), rtol=1e-5)


@pytest.mark.slow
def test_a_policy_that_can_be_the_target_becomes_it():
    recipe = dict(groups=1, group_size=64, minibatches=1, steps=150, learning_rate=0.05, optimizer="adam")
    found = proxies.divergence_targets((0, 1), arms={"js": "js"}, vocab=3, length=1, beta=1.0, recipe=recipe)
    assert max(found.values["js"]["covers"]) < 0.03 and max(found.values["js"]["seeks"]) < 0.03


@pytest.mark.slow
def test_overrated_answers_are_what_a_policy_learns_to_give():
    recipe = dict(groups=2, group_size=16, minibatches=1, steps=100, learning_rate=0.1, optimizer="adam")
    arm = dict(shape="against_references", surrogate="reinforce", advantage="leave_one_out")
    world = dict(vocab=3, length=2, prompts=2, share=0.3, excess=8.0, noise=0.0, references=4)
    found = proxies.wrong_somewhere((0, 1), arms={"par": arm}, recipe=recipe, **world).values["par"]
    assert min(found["hacked"]) > 0.5 and min(found["lost"]) >= 0.0
    np.testing.assert_allclose(found["best"] - found["reward"], found["lost"], atol=1e-6)
