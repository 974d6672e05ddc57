"""relabelling/captions.py and captioned.py against plain loops, with an annotator that the test answers for."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax.control import relabelling
from rl_jax.control.relabelling import captions
from rl_jax.models.agents.features import make_net
from tests.control.relabelling.rows import walk

QUICK = {"xla_backend_optimization_level": 0}
PLACES = 6


class Beside:
    """An annotator whose captions are places: `told` are its answers by hash, `sent` the questions of each call."""

    def __init__(self, told=()):
        self.told, self.sent = dict(told), []

    def read(self, observations):
        places = observations.argmax(axis=1)
        return (places + 10).astype(np.uint32), np.eye(PLACES, dtype=np.float32)[places]

    def answers(self, questions, waiting, examples):
        asked = [tuple(int(x) - 10 for x in row) for row in questions]
        self.sent.append([q for q, on in zip(asked, waiting, strict=True) if on])
        places = examples.argmax(axis=2)[waiting].tolist()
        assert places == [list(q) for q, on in zip(asked, waiting, strict=True) if on], (
            "an observation with the caption"
        )
        return np.where(waiting, np.float32([self.told.get(q, np.nan) for q in asked]), np.float32(np.nan))


def made(beside, **fields):
    known = dict(num_envs=1, observation_size=PLACES, make_net=make_net, annotator={})
    known |= dict(make_annotator=lambda spec, pairs: (beside, PLACES))
    plain = dict(captions=PLACES, limit=2, power=1.0, coef=1.0, keep=0.0, hidden=(), learning_rate=0.1)
    return relabelling.by_captions(**known | plain | fields)


def compiled(relabel):
    return relabel.begin(jax.random.key(0)), jax.jit(relabel.apply, compiler_options=QUICK)


def test_hashes_get_places_as_a_dictionary_gives_them():
    rng, table, by_hand = np.random.default_rng(0), jnp.zeros(5, jnp.uint32), {}
    place = jax.jit(captions.placed, compiler_options=QUICK)
    for _ in range(6):
        found = rng.integers(1, 9, 4).astype(np.uint32)
        for number in sorted(set(found.tolist())):
            if number not in by_hand and len(by_hand) < 5:
                by_hand[number] = len(by_hand)
        table, places = place(table, found)
        assert places.tolist() == [by_hand.get(number, 5) for number in found.tolist()]
        assert [x for x in table.tolist() if x] == list(by_hand)
    assert len(by_hand) == 5, "some did not fit in"


def test_the_newest_open_captions_are_chosen():
    rng = np.random.default_rng(1)
    for room in range(4):
        seen, on = rng.permutation(8).astype(np.int32) + 1, rng.random(8) < 0.6
        expected = sorted(np.flatnonzero(on), key=lambda i: -seen[i])[: min(room, 3)]
        found = captions.newest(seen, on, jnp.int32(room), 3)
        assert np.flatnonzero(found).tolist() == sorted(expected)


def test_the_loss_is_the_cross_entropy_of_what_has_an_answer():
    logits, answers = np.float32([0.3, -1.0, 2.0, 5.0]), np.float32([1.0, 0.5, 0.0, np.nan])
    p = 1 / (1 + np.exp(-logits[:3]))
    expected = -np.mean(answers[:3] * np.log(p) + (1 - answers[:3]) * np.log(1 - p))
    value, gradient = jax.value_and_grad(captions.answer_loss)(logits, answers)
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    np.testing.assert_allclose(gradient, np.append((p - answers[:3]) / 3, 0.0), rtol=1e-4)
    assert captions.answer_loss(logits, np.full(4, np.nan, np.float32)) == 0.0


def test_pairs_are_of_different_captions_and_spare_those_that_wait():
    state = captions.blank(1, 4, 3, 2, 1, 1, jax.random.key(0))
    draw = jax.jit(functools.partial(captions.drawn_pairs, limit=2), compiler_options=QUICK)
    assert not draw(state._replace(hashes=jnp.uint32([7, 0, 0, 0])), jax.random.key(0)).sent.any(), "one caption"
    state, counts = state._replace(hashes=jnp.uint32([7, 8, 9, 0])), []
    for turn in range(40):
        before, state = state, draw(state, jax.random.key(turn))
        held = np.asarray(captions.waiting(before))
        np.testing.assert_array_equal(state.questions[held], before.questions[held])
        assert captions.waiting(state).sum() <= 2
        asked = np.asarray(state.questions)[np.asarray(captions.waiting(state))]
        assert (asked[:, 0] != asked[:, 1]).all() and asked.max() < 3
        counts += [tuple(x) for x in asked.tolist()]
        if turn % 2:  # all are answered
            state = state._replace(answers=jnp.where(state.sent, 1.0, jnp.nan))
    assert len(set(counts)) == 6, "every pair of three captions, in both orders"


def test_labels_pay_from_the_update_in_which_they_come():
    """Two questions at a time, the newest first; a visit pays 1 / N; without a label there is nothing."""
    beside = Beside()
    state, apply = compiled(made(beside))
    rows, paid = walk([0, 1, 2, 3, 2, 3], PLACES), []
    for turn in range(4):
        if turn == 1:
            beside.told = {(2,): 1.0, (3,): 0.0}
        if turn == 3:
            beside.told[(1,)] = 1.0
        state, found = apply(state, rows)
        paid.append(found.rewards[0].tolist())
    assert paid == [[0, 0, 0, 0, 0], [0, 1, 0, 0.5, 0], [0, 1, 0, 0.5, 0], [1, 1, 0, 0.5, 0]]
    assert [sorted(sent) for sent in beside.sent] == [[(2,), (3,)], [(2,), (3,)], [(1,)], [(1,)]]
    measured = {name: float(x) for name, x in made(beside).measure(state).items()}
    expected = {"relabel/captions": 3, "relabel/labelled": 3, "relabel/waiting": 0, "relabel/paid": 0.6}
    assert measured == pytest.approx(expected)


def test_what_does_not_fit_pays_nothing():
    beside = Beside({(1,): 1.0, (2,): 1.0})
    state, apply = compiled(made(beside, captions=2, limit=1))
    rows = walk([0, 1, 2, 3, 2], PLACES)  # 3 does not fit in
    for _ in range(2):
        state, found = apply(state, rows)
    assert beside.sent == [[(2,)], [(1,)]] and found.rewards[0].tolist() == [1, 1, 0, 0.5]


@pytest.mark.parametrize("kind", ["classifier", "ranking"])
def test_a_network_learns_what_the_answers_say(kind):
    """Places above 2 are better. Before the first answers nothing is paid, whatever the network says."""
    beside = Beside()
    state, apply = compiled(made(beside, kind=kind, pairs=12, limit=6, power=0.0))
    rows = walk([0, 1, 2, 3, 4, 5], PLACES)
    state, found = apply(state, rows)
    assert not found.rewards.any()
    beside.told = {(i,): float(i > 2) for i in range(PLACES)}
    beside.told |= {(i, j): float(j > i) for i in range(PLACES) for j in range(PLACES)}
    for _ in range(8):
        state, found = apply(state, rows)
    value = np.asarray(found.rewards[0])
    if kind == "classifier":
        np.testing.assert_array_equal(value, [0, 0, 1, 1, 1])
    else:
        assert value[0] == 0.0 and value[-1] > 1.0 and (value > -0.5).all(), value
        assert (np.diff(value[value != 0.0]) > 0).all() and (value == 0.0).sum() >= 2, "half a deviation below the mean"


def test_an_annotator_that_fails_stops_the_update():
    def answers(questions, waiting, examples):
        raise ConnectionError("nobody there")

    beside = Beside()
    beside.answers = answers
    state, apply = compiled(made(beside))
    with pytest.raises(Exception, match="nobody there"):
        jax.block_until_ready(apply(state, walk([0, 1, 2], PLACES)))


def test_what_is_refused():
    for fields, said in (
        (dict(kind="table"), "kind='table' must be one of retrieval"),
        (dict(kind="ranking", pairs=1), "pairs=1 limit or more"),
        (dict(axis_name="envs"), "mesh without envs"),
    ):
        with pytest.raises(ValueError, match=said):
            made(Beside(), **fields)
