"""The studies of judges in training and of partial scores for SQL, small."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.studies import judges, queries
from rl_jax.rewards import sql

# --- Judges ----------------------------------------------------------------------------------------------------------


def test_the_pairs_of_a_judge_are_the_best_and_the_worst_of_each_prompt():
    x, gold = jnp.arange(12.0).reshape(2, 3, 2), jnp.array([[0.5, 0.1, 0.9], [3.0, 2.0, 1.0]])
    np.testing.assert_array_equal(judges.best_and_worst(x, gold), [[[4, 5], [2, 3]], [[6, 7], [10, 11]]])


@pytest.mark.slow
def test_a_judge_learns_in_the_steps_that_are_due_and_in_no_other():
    """With retrain_every larger than the run it is the frozen one; a judge in training is another one."""
    recipe = judges.Recipe(
        prompts=2, group_size=4, steps=4, epochs=1, learning_rate=0.1, kl_coef=0.05, judge_learning_rate=0.05
    )
    draws = [jax.random.normal(jax.random.key(i), shape) for i, shape in enumerate([(3, 8), (8,), (8,), (3, 6), (6,)])]
    world = judges.World(*draws[:3], jnp.zeros(()))
    judge = {"weights": draws[3], "bias": jnp.zeros(6), "head": draws[4]}

    @jax.jit
    def run(key):
        return {every: judges.run_arm(key, world, judge, every, recipe) for every in (0, 2, 5)}

    found = run(jax.random.key(9))
    for frozen, never_due, learning in zip(found[0], found[5], found[2], strict=True):
        assert frozen.shape == (5,)
        np.testing.assert_allclose(never_due, frozen, rtol=1e-5)
        np.testing.assert_allclose(learning[:2], frozen[:2], rtol=1e-5)  # the first update is after the second step
    for place in (0, 1):
        assert not np.allclose(found[2][place][-1], found[0][place][-1], rtol=1e-4)
    assert found[0][1][0] == 0.0 < found[0][1][-1], "the KL to the reference"


@pytest.mark.slow
def test_a_judge_fitted_to_more_labels_knows_the_reference_better():
    key = jax.random.key(0)
    labels = dict(pairs=16, flip_rate=0.25, group_size=4, hidden=16, steps=40)

    @jax.jit
    def accuracies(key):
        world = judges.make_world(key, dimensions=3, waves=16, scale=4.0)
        x = jax.random.normal(jax.random.fold_in(key, 1), (256, 2, 3))
        pairs = judges.best_and_worst(x, world.true_reward(x))
        few, many = (judges.read(judges.fit_judge(key, world, more=more, **labels), pairs) for more in (0, 128))
        return [jnp.mean(rewards[:, 0] > rewards[:, 1]) for rewards in (few, many)]

    few, many = accuracies(key)
    assert many > max(few, 0.75)


# --- SQL -------------------------------------------------------------------------------------------------------------


def test_the_questions_are_answered_by_their_queries():
    questions = queries.all_questions()
    assert len({question.query for question in questions}) == len(questions) == 65
    assert len({tuple(question.features) for question in questions}) == 65, "what is asked tells them apart"
    rng = np.random.default_rng(0)
    right = np.stack([queries.demonstration(rng, question, 0.0) for question in questions])
    scores = queries.score_rows(right, questions)
    names = list(sql.WEIGHTS)
    assert names.index("format") == 4 and (scores[:, :4] == 1).all() and (scores[:, 4] == 0).all()
    wrong = np.stack([queries.demonstration(rng, question, 1.0) for question in questions])
    assert (wrong != right).any(axis=1).all()
    found = queries.score_rows(wrong, questions).mean(axis=0)
    assert found[0] < 0.2 < found[3] < 1.0, "a piece that is lost or another one: wrong rows, most pairs of tokens"


@pytest.mark.slow
def test_a_piece_is_sampled_with_the_probability_that_is_scored():
    params = queries.init_policy(jax.random.key(0), 13, 4)
    features = jnp.zeros((2000, 13))
    tokens = queries.sample(jax.random.key(1), params, features)
    assert tokens.shape == (2000, queries.LENGTH)
    table = jnp.exp(queries.log_probs_of(params, features[:1], tokens[:1]))
    drawn = np.bincount(np.asarray(tokens[:, 0]), minlength=len(queries.PIECES)) / 2000
    np.testing.assert_allclose(drawn, table[0, 0], atol=0.04)
    scored = queries.token_scores(params, features[:2], tokens[:2]).log_probs
    np.testing.assert_allclose(scored[0, 0], jnp.log(table[0, 0, tokens[0, 0]]), rtol=1e-5)
    mask = queries.mask_of(jnp.array([[3, 0, 0], [0, 1, 2], [1, 2, 3]]))
    np.testing.assert_array_equal(mask, [[1, 1, 0], [1, 0, 0], [1, 1, 1]])


@pytest.mark.slow
def test_only_the_scores_with_a_weight_pay():
    settings = dict(
        held_out=0.25,
        samples=2,
        warm_start=dict(wrong=0.5, batch_size=16, learning_rate=0.01),
        recipe=dict(groups=4, group_size=4, steps=3, learning_rate=0.01),
    )
    arms = {
        "nothing": dict(weights={}, warm_steps=30),
        "syntax": dict(weights={"syntax": 1.0}, warm_steps=30),
        "twice": dict(weights={"syntax": 2.0}, warm_steps=30),
    }
    found = queries.partial_rewards((0, 1), arms=arms, **settings).values
    again = queries.partial_rewards((0, 1), arms=dict(list(arms.items())[1:]), **settings).values
    for metric in ("execution", "start", "syntax", "learning"):
        np.testing.assert_array_equal(found["syntax"][metric], again["syntax"][metric])  # whatever ran before
        np.testing.assert_allclose(found["syntax"][metric], found["twice"][metric], atol=0.1)  # GRPO divides by the std
    np.testing.assert_array_equal(found["nothing"]["start"], found["syntax"]["start"])
    assert all((0 <= value).all() and (value <= 1).all() for row in found.values() for value in row.values())
