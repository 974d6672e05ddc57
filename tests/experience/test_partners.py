"""rl_jax.experience.partners: the other side of an episode, played by a sampler, in a dialogue of its own."""

import asyncio
import json
import random

import numpy as np
import pytest

from rl_jax.envs.text import kuhn, two_party
from rl_jax.experience.episode import Drawn, Limits
from rl_jax.experience.episodes import Environments, play
from rl_jax.experience.partners import PARTNER
from rl_jax.rollout.lm.episodes import TwoSamplers
from rl_jax.tokenizers import CharTokenizer
from rl_jax.tokenizers.dialogue import dialogue_of
from tests.experience.test_episodes import asks

TOKENIZER = CharTokenizer(kuhn.Kuhn.ALPHABET)
LIMITS = Limits(turns=3, context=40, row=36)


class Table:
    """A sampler that plays a policy {what is read last: move}; partners and episodes by the same one."""

    def __init__(self, policy):
        self.policy, self.waiting, self.seen = policy, [], []

    def submit(self, draws):
        self.waiting += draws
        self.seen += draws

    def release(self, number):
        assert number < PARTNER

    def step(self):
        done, self.waiting = self.waiting, []
        found = []
        for draw in done:
            read = TOKENIZER.decode([*draw.prompt, *draw.tokens]).replace(":", "")
            ids = TOKENIZER.encode_continuation(self.policy(read), eos=True)[: draw.limit]
            found.append(Drawn(draw.number, np.array(ids, np.int32), -np.ones(len(ids)), -np.ones(len(ids)), "eos"))
        return found

    close = None


def hands(policy, deal, seat, size=2):
    """Hands of one deal; (trajectories, draws)."""
    info = json.dumps({"deal": deal, "seat": seat, "opening": "?"})
    some = [ask._replace(record={"prompt": "?", "info": info, "id": "p"}) for ask in asks(groups=1, size=size)]
    sampler = Table(policy)
    options = dict(limits=LIMITS, partners=True)
    return play(some, Environments(kuhn.Kuhn), dialogue_of(TOKENIZER), sampler, **options), sampler.seen


@pytest.mark.parametrize("deal", kuhn.DEALS)
@pytest.mark.parametrize("seat", [0, 1])
def test_both_seats_play_the_hand_that_the_rules_say(deal, seat):
    """A K bets and calls, a J passes and folds, a Q passes first, calls, and bets after a pass."""

    def policy(read):
        card, history = read[0], read[1:]
        if card in "KJ":
            return "b" if card == "K" else "p"
        return "p" if not history else "b"

    history = ""
    while history not in kuhn.ENDS:
        history += policy(deal[len(history) % 2] + history)
    found, drawn = hands(policy, deal, seat)
    for hand in found:
        assert hand.reward == kuhn.payoff(deal, history) * (1 if seat == 0 else -1) and hand.status == "done"
    for draw in drawn:  # nobody reads the other one's card
        card = deal[seat] if draw.number < PARTNER else deal[1 - seat]
        assert TOKENIZER.decode(draw.prompt)[0] == card
    whole = {TOKENIZER.decode([*draw.prompt, *draw.tokens]).replace(":", "")[1:] for draw in drawn}
    assert all(history.startswith(read) for read in whole)


def test_what_a_partner_says_before_the_prompt_is_the_groups():
    found, drawn = hands(lambda read: "p", ("K", "Q"), 1, size=4)
    opening = [draw for draw in drawn if draw.number >= PARTNER and not len(draw.tokens)]
    assert len(opening) == 4 and {(draw.seed, draw.segment) for draw in opening} == {(PARTNER, 1)}
    assert {TOKENIZER.decode(hand.segments[0][0].ids) for hand in found} == {"Qp:"}
    _, drawn = hands(lambda read: "b" if read == "K" else "p", ("K", "Q"), 0, size=4)
    later = [draw for draw in drawn if draw.number >= PARTNER]
    assert sorted(draw.seed for draw in later) == [PARTNER + n for n in range(4)]


def test_words_that_are_no_move_pass():
    found, _ = hands(lambda read: "??" if read[0] == "J" else "b", ("K", "J"), 0)
    assert [hand.reward for hand in found] == [1.0, 1.0]  # the J folded


def test_two_policies_answer_their_own_draws():
    own, other = Table(lambda read: "p"), Table(lambda read: "b")
    own.close = other.close = lambda: None
    both = TwoSamplers(own, other, PARTNER)
    info = json.dumps({"deal": ("K", "J"), "seat": 0, "opening": ""})
    some = [ask._replace(record={"prompt": "?", "info": info, "id": "p"}) for ask in asks(groups=1)]
    found = play(some, Environments(kuhn.Kuhn), dialogue_of(TOKENIZER), both, LIMITS, partners=True)
    assert [hand.reward for hand in found] == [-1.0, -1.0]  # p, b, p
    assert {draw.number >= PARTNER for draw in other.seen} == {True} and {d.number < PARTNER for d in own.seen} == {
        True
    }
    both.close()


def test_a_bargain_with_a_partner_and_with_the_script():
    info = {"side": "b", "value": 20, "cost": 10}
    env, told = two_party.Bargain(), []

    async def partner(text):
        told.append(text)
        return ["15", "ok"][len(told) - 1]

    def start():
        env.reset({"prompt": "b20:", "info": json.dumps(info)}, 0)

    start()
    env.partner = partner
    first = asyncio.run(env.step("8"))
    assert first.messages[0]["content"] == "15:" and first.reward == pytest.approx(-0.02) and not first.done
    last = asyncio.run(env.step("12"))
    assert told == ["s10:8:", "12:"] and last.done and last.reward == pytest.approx(0.4)
    assert last.numbers["deal"] == 1 and last.numbers["surplus"] == 0.5
    env.partner = None
    start()
    assert env.step("ok").numbers["malformed"] == 1  # nothing is on the table
    assert env.step("12").reward == pytest.approx(0.4)  # the script takes a gain of 2
    start()
    assert env.step("9" * 5000).numbers["malformed"] == 1  # more digits than int() reads
    start()
    assert env.step("5").messages[0]["content"] == "18:" and env.step("ok").reward == pytest.approx(0.1)
    rng = random.Random(0)
    for side in "bs":
        problems = two_party.Bargain(side=side).problems(rng)
        assert {next(problems)[0][0] for _ in range(5)} == {side}
    with pytest.raises(ValueError, match="side='x' must be"):
        two_party.Bargain(side="x")
