"""rollout/lm/episodes.py: turns of episodes on the engine, held slots, and trajectories as rows."""

import functools
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from rl_jax.envs.text import Step
from rl_jax.experience import trajectory as t
from rl_jax.experience.episode import Ask, Limits
from rl_jax.experience.episodes import Environments, play
from rl_jax.models.transformer.model import make_transformer
from rl_jax.rollout.lm.continuous import Engine
from rl_jax.rollout.lm.episodes import EngineSampler, TwoSamplers, as_rollout
from rl_jax.rollout.lm.requests import requests_of
from rl_jax.tokenizers.dialogue import dialogue_of
from rl_jax.training import packing
from rl_jax.training.scoring import make_score
from tests.tiny import CONFIG, prompts, random_params

TINY = make_transformer(CONFIG)
EOS = tuple(range(5, 64, 8))
P, C, EPISODES = 8, 88, 12
LIMITS = Limits(turns=4, context=P + C, row=C, turn_tokens=30)


class Ids:
    """A tokenizer of ids as characters, so that every sampled id is a text."""

    pad_id, bos_id, eos_ids, vocab_size = 0, None, EOS, 64

    def encode(self, text, *, bos=False):
        return [ord(character) for character in text]

    encode_continuation = encode

    def decode(self, ids):
        return "".join(map(chr, ids))


class Talker:
    """Answers with four to seven fixed ids; ends after three turns."""

    def reset(self, record, seed):
        self.turns = 0
        return record["prompt"]

    def step(self, said):
        self.turns += 1
        answer = "".join(chr(8 * (ord(c) % 7) + 4) for c in (said + "    ")[: 4 + len(said) % 4])
        return Step([{"role": "tool", "content": answer}], 1.0, self.turns == 3)


@functools.cache
def engine(slots=EPISODES):
    sizes = dict(slots=slots, sizes=(slots, 1), prompt_length=P + C - 1, length=P + C, refill=slots)
    return Engine(TINY, eos_ids=EOS, chunk=4, steps=5, **sizes)


def held_requests():
    """Four rows that keep their slots."""
    found = requests_of(*prompts([6, 2, 8, 1], P), group_size=1, max_tokens=30)
    return [request._replace(hold=True) for request in found]


def asks():
    tokens, mask = map(np.asarray, prompts([6, 2, 8, 1], P))
    texts = [Ids().decode(row[real]) for row, real in zip(tokens, mask, strict=True)]
    return [Ask(n, {"prompt": texts[n // 3], "id": str(n // 3)}, n // 3, n % 3, 0) for n in range(EPISODES)]


@functools.cache
def episodes(slots=EPISODES, hold=False):
    sampler = EngineSampler(engine(slots), random_params(), jax.random.key(3), hold=hold)
    try:
        return play(asks(), Environments(Talker), dialogue_of(Ids()), sampler, LIMITS)
    finally:
        sampler.close()


def rows(trajectories, **options):
    return as_rollout(trajectories, prompt_length=P, completion_length=C, pad_id=0, **options)


def test_the_first_turn_is_the_single_turn_sample():
    engine(EPISODES).submit(requests_of(*prompts([6, 2, 8, 1], P), group_size=3, max_tokens=30), jax.random.key(3))
    for completion, trajectory in zip(engine(EPISODES).run(random_params()), episodes(), strict=True):
        np.testing.assert_array_equal(trajectory.sampled()[0].ids, completion.tokens)
        np.testing.assert_array_equal(trajectory.sampled()[0].log_probs, completion.sampled_log_probs)


@pytest.mark.parametrize(("slots", "hold"), [(3, False), (EPISODES, True)])
def test_slots_and_held_caches_change_nothing(slots, hold):
    assert len({trajectory.status for trajectory in episodes()}) > 1, "some episodes should end early"
    assert sum(len(trajectory.turns) > 1 for trajectory in episodes()) > 3
    for one, other in zip(episodes(), episodes(slots, hold), strict=True):
        assert one.ids().tolist() == other.ids().tolist() and one.status == other.status
        for span, like in zip(one.sampled(), other.sampled(), strict=True):
            np.testing.assert_allclose(span.log_probs, like.log_probs, atol=1e-5)
    assert engine(slots).idle and not engine(slots)._slots.held


def test_held_rows_do_not_read_their_context_again(monkeypatch):
    held, read = engine(EPISODES), []
    resume, prefill = held.programs.resume, held.programs.prefill
    monkeypatch.setattr(held.programs, "resume", lambda *a: read.append(a[7] - a[6]) or resume(*a))
    monkeypatch.setattr(held.programs, "prefill", lambda *a: read.append("prompts") or prefill(*a))
    episodes.__wrapped__(EPISODES, True)
    resumed = [part for part in read if not isinstance(part, str)]
    assert len(read) - len(resumed) <= 4 and resumed  # the four prompts only
    assert max(part.max() for part in resumed) <= 7 + 1 + 3  # an answer, the last sampled token, and part of a chunk


def test_few_rows_go_on_while_others_are_held():
    """Fewer live rows than a smaller size, in a size that the held rows need: the decoder once did nothing."""
    small, params, key = engine(EPISODES), random_params(), jax.random.key(3)
    small.submit(held_requests(), key)
    ended = [completion for completion in small.run(params) if completion.reason == "eos"]
    assert len(ended) == len(small._slots.held) == 2 and small._slots.size == EPISODES
    unknown = np.zeros(len(ended[0].tokens) + 2, np.float32)
    tokens = np.append(ended[0].tokens, [1, 1]).astype(np.int32)
    more = ended[0].request._replace(
        tokens=tokens, sampled_log_probs=unknown, raw_log_probs=unknown, max_tokens=len(tokens) + 12
    )
    small.submit([more], key)
    (found,) = small.run(params)  # the other row is held, as that of an environment that has not answered yet
    small.abort()
    small.submit([more._replace(hold=False)], key)
    (alone,) = small.run(params)
    assert found.tokens.tolist() == alone.tokens.tolist() and len(found.tokens) > len(tokens)


def test_log_probs_are_the_scores_of_the_rows():
    rollout = rows(episodes())
    score = jax.jit(make_score(TINY, completion_length=C, chunk=8))
    scored = np.asarray(score(random_params(), rollout.batch).log_probs)
    mask = rollout.completion_mask
    assert not mask[:, 0].all() or mask.any()
    np.testing.assert_allclose(scored[mask], rollout.sampled_log_probs[mask], atol=2e-5)
    holes = (rollout.batch.segment_ids[:, P:] > 0) & ~mask
    assert holes.any() and not rollout.sampled_log_probs[~mask].any()


def example():
    """Two segments; a failed episode; one that ended at a limit."""
    first = (t.prompt([5, 6]), t.sampled([7, 2], [-0.5, -0.1], version=3), t.given("observation", [8, 9]))
    second = (t.prompt([5, 6, 9]), t.sampled([2, 1], [-0.25, -0.75], [-0.5, -1.5], version=5))
    turns = (t.Turn(-0.5, "a"), t.Turn(1.0, "b"))
    failed = (t.prompt([4]), t.sampled([3], [-1.0]))
    return [
        t.Trajectory("p", 0, 0, (first, second), turns, "done"),
        t.Trajectory("p", 0, 1, (failed,), (t.Turn(9.0, "a"),), "error", "OSError"),
        t.Trajectory("p", 0, 2, (first[:2],), (t.Turn(0.0, "b"),), "turns"),
        t.Trajectory("p", 0, 3, (), (), "error", "OSError"),
    ]


def test_rows_of_trajectories():
    rollout = as_rollout(example(), prompt_length=3, completion_length=10, pad_id=0, version=6)
    batch = rollout.batch
    assert batch.tokens[0].tolist() == [0, 5, 6, 7, 2, 8, 9, 5, 6, 9, 2, 1, 0]
    assert batch.positions[0].tolist() == [0, 0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 0]
    assert batch.segment_ids[0].tolist() == [0, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 0]
    assert rollout.turns.numbers[0].tolist() == [0, 0, -1, -1, -1, -1, -1, 1, 1, -1]
    assert rollout.turns.rewards[0].tolist() == [0, -0.5, 0, 0, 0, 0, 0, 0, 1, 0]
    assert rollout.sampled_log_probs[0].tolist() == [-0.5, np.float32(-0.1), 0, 0, 0, 0, 0, -0.25, -0.75, 0]
    assert rollout.raw_log_probs[0].tolist() == [-0.5, np.float32(-0.1), 0, 0, 0, 0, 0, -0.5, -1.5, 0]
    assert rollout.versions[0].tolist() == [3, 3, 6, 6, 6, 6, 6, 5, 5, 6]
    np.testing.assert_array_equal(rollout.completion_mask, rollout.turns.numbers >= 0)
    states = rollout.turns.state_keys
    assert states[0, 0] == states[0, 1] != states[0, 7] == states[2, 0] >= 0 and states[0, 2] == -1
    for failed in (1, 3):
        assert not rollout.completion_mask[failed].any() and not rollout.turns.rewards[failed].any()
        assert batch.segment_ids[failed].any()
    assert batch.segment_ids[3].tolist() == [0, 0, 1] + [0] * 10, "the one token of a row without any is of the prompt"
    assert rollout.finished.tolist() == [True, False, False, False]
    assert rollout.truncated.tolist() == [False, False, True, False]
    wrong = as_rollout(example(), prompt_length=3, completion_length=10, pad_id=0, observations=True)
    assert wrong.versions is None and (wrong.completion_mask != rollout.completion_mask).sum() == 2


def test_no_token_reads_another_segment():
    both = as_rollout(example()[:1], prompt_length=3, completion_length=10, pad_id=0)
    whole = example()[0]
    alone = whole._replace(segments=whole.segments[1:], turns=whole.turns[1:])
    last = as_rollout([alone], prompt_length=3, completion_length=10, pad_id=0)
    score = jax.jit(make_score(TINY, completion_length=10, chunk=5))
    one, other = (np.asarray(score(random_params(), rollout.batch).log_probs) for rollout in (both, last))
    np.testing.assert_allclose(one[0, 7:9], other[0, :2], atol=1e-5)


def test_a_row_that_does_not_fit_is_named():
    with pytest.raises(ValueError, match="sample 0 of prompt 'p' does not fit a row of 3 tokens of prompt and 4"):
        as_rollout(example(), prompt_length=3, completion_length=4, pad_id=0)


@pytest.mark.parametrize("share_prefix", [False, True])
def test_packed_rows_with_holes_have_the_same_scores(share_prefix):
    rollout = rows([*episodes()[:6], episodes()[6]._replace(status="error")])
    mask = rollout.completion_mask
    packed = packing.pack(rollout.batch, mask, share_prefix=share_prefix)
    score = jax.jit(make_score(TINY, completion_length=C, chunk=8))
    one, other = (np.asarray(score(random_params(), batch).log_probs) for batch in (rollout.batch, packed))
    assert not mask[-1].any() and mask[:-1].any(axis=1).all()
    np.testing.assert_allclose(one[mask], other[mask], atol=2e-5)


class Player:
    """A sampler whose turns end at the next step."""

    def __init__(self):
        self.draws, self.steps = [], 0

    def submit(self, draws):
        self.draws += draws

    def step(self):
        self.steps, found, self.draws = self.steps + 1, self.draws, []
        return found


def test_a_partner_is_asked_while_it_has_turns():
    own, other = Player(), Player()
    both = TwoSamplers(own, other, first=10)
    draws = [SimpleNamespace(number=number) for number in (1, 10, 12)]
    both.submit(draws)
    assert both.step() == [draws[1], draws[2], draws[0]]
    assert both.step() == [] and (own.steps, other.steps) == (2, 1)


def test_segments_of_an_episode_have_seeds_of_their_own():
    def seed(number, segment, given=None):
        draw = dict(number=number, prompt=[1], tokens=np.zeros(0, np.int32), limit=3, seed=given, segment=segment)
        request = EngineSampler(None, None, None)._request(SimpleNamespace(**draw, last=True))
        return request.seed

    seeds = {seed(number, segment) for number in (0, 1, 2, 2**20 - 1) for segment in range(3)}
    assert len(seeds) == 12 and seed(5, 1, given=2) == seed(2, 1)
