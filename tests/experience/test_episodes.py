"""rl_jax.experience.episodes: turns, limits, errors, and that the order of host work changes nothing."""

import asyncio
import random
import threading

import numpy as np
import pytest

from rl_jax.envs.text import Step
from rl_jax.envs.text.tool_user import ToolUser
from rl_jax.experience import answers
from rl_jax.experience.episode import Ask, Drawn, Limits
from rl_jax.experience.episodes import Environments, play, probing
from rl_jax.rollout.lm.episodes import as_rollout
from rl_jax.tokenizers import CharTokenizer, load_tokenizer
from rl_jax.tokenizers.dialogue import dialogue_of
from tests import tiny_tokenizers

TOKENIZER = CharTokenizer("abcdefgh0123456789?=.")
EOS = TOKENIZER.eos_id
LIMITS = Limits(turns=4, context=40, row=36)


class Parrot:
    """Samples "a", "b", ... and EOS: which letter, and how many, follows from the episode's number and its tokens.

    At most `slots` turns at a time, in an order that `seed` decides.
    """

    def __init__(self, slots=100, seed=0, length=2):
        self.waiting, self.slots, self.random, self.length, self.seen = [], slots, random.Random(seed), length, []

    def submit(self, draws):
        assert not {draw.number for draw in draws} & {draw.number for draw in self.waiting}
        self.waiting += draws
        self.seen += draws

    def step(self):
        self.random.shuffle(self.waiting)
        done, self.waiting = self.waiting[: self.slots], self.waiting[self.slots :]
        return [self.draw(draw) for draw in done]

    def release(self, number):
        assert number not in {draw.number for draw in self.waiting}

    def draw(self, draw):
        letter = 3 + (draw.number + len(draw.tokens) + 7 * draw.segment) % 8
        ids = np.array([letter] * self.length + [EOS], np.int32)[: draw.limit]
        reason = "eos" if ids[-1] == EOS else "length"
        return Drawn(draw.number, ids, -np.arange(1.0, len(ids) + 1, dtype=np.float32), -np.ones(len(ids)), reason)


class Asker:
    """Asks `turns` times, with "?" and the number of the turn."""

    def __init__(self, turns=3, answer="?{}="):
        self.turns, self.answer, self.closed = turns, answer, False

    def reset(self, record, seed):
        self.turn, self.seed = 0, seed
        return record["prompt"]

    def state_key(self):
        return f"turn {self.turn}"

    def step(self, said):
        self.turn += 1
        done = self.turn == self.turns
        return Step([{"role": "tool", "content": self.answer.format(self.turn)}], 1.0, done, {"letters": len(said)})

    def close(self):
        self.closed = True


class Slow(Asker):
    """The same, which answers whenever it likes."""

    async def step(self, said):
        for _ in range(random.Random(said + str(self.turn) + str(id(self))).randrange(5)):
            await asyncio.sleep(0)
        return super().step(said)


def asks(groups=2, size=2):
    """Episodes of "1?", "2?", ..."""
    places = [divmod(number, size) for number in range(groups * size)]
    return [Ask(n, {"prompt": f"{g}?", "id": f"p{g}"}, g, sample, 5) for n, (g, sample) in enumerate(places)]


def run(make=Asker, sampler=None, limits=LIMITS, **options):
    return play(asks(), Environments(make), dialogue_of(TOKENIZER), sampler or Parrot(), limits, **options)


def texts(trajectory):
    return [(span.kind, TOKENIZER.decode(span.ids)) for span in trajectory.segments[-1]]


def test_an_episode_is_a_growing_list():
    found = run(version=7)
    assert [(t.prompt_id, t.group, t.sample, t.status) for t in found] == [
        ("p0", 0, 0, "done"), ("p0", 0, 1, "done"), ("p1", 1, 0, "done"), ("p1", 1, 1, "done")
    ]  # fmt: skip
    first = found[0].check()
    assert texts(first) == [
        ("prompt", "0?"), ("sampled", "aa"), ("observation", "?1="), ("sampled", "gg"), ("observation", "?2="),
        ("sampled", "ee")
    ]  # fmt: skip
    assert first.segments[0][0].ids[0] == TOKENIZER.bos_id and first.sampled()[1].ids.tolist()[-1] == EOS
    assert [(turn.reward, turn.state_key, turn.numbers) for turn in first.turns] == [
        (1.0, f"turn {n}", {"letters": 2.0}) for n in range(3)
    ]
    assert all(span.versions.tolist() == [7] * 3 for span in first.sampled())


def test_an_environment_that_cannot_be_made_ends_its_own_episode_alone():
    """Such as one whose tools are asked for, on a server that is away."""
    gone = ConnectionError("the server is gone")
    made = iter((None, gone, gone, None, None))  # the second episode begins twice

    def make():
        if (error := next(made)) is not None:
            raise error
        return Asker()

    found = run(make)
    assert [trajectory.status for trajectory in found] == ["done", "error", "done", "done"]
    assert "the server is gone" in str(found[1].error)


def test_the_order_of_host_work_changes_nothing():
    expected = [trajectory.ids().tolist() for trajectory in run()]
    for seed in range(4):
        assert [t.ids().tolist() for t in run(Slow, Parrot(slots=1 + seed, seed=seed))] == expected


def test_512_episodes_of_8_turns_are_neither_lost_nor_doubled():
    places = [divmod(number, 8) for number in range(512)]
    many = [Ask(n, {"prompt": f"{g}?", "id": f"p{g}"}, g, sample, 5) for n, (g, sample) in enumerate(places)]
    sampler, limits = Parrot(slots=100, seed=1), Limits(turns=8, context=100, row=90)
    found = play(many, Environments(lambda: Asker(8)), dialogue_of(TOKENIZER), sampler, limits)
    assert [(t.group, t.sample) for t in found] == places
    assert all(t.status == "done" and len(t.turns) == 8 for t in found)
    assert len(sampler.seen) == 8 * 512 and not sampler.waiting


@pytest.mark.parametrize(
    ("limits", "status", "spans"),
    [
        (dict(turns=2), "turns", 4),  # prompt, turn, answer, turn
        (dict(turn_tokens=2), "tokens", 2),  # no EOS: cut off
        (dict(tokens=5), "tokens", 4),
        (dict(context=9), "context", 2),  # prompt 3, turn 3, and the answer's 3 leave nothing
        (dict(row=6), "context", 2),
    ],
)
def test_limits_end_an_episode(limits, status, spans):
    found = run(limits=LIMITS._replace(**limits))
    assert {(t.status, len(t.segments[0])) for t in found} == {(status, spans)}
    assert all(len(t.ids()) <= (limits.get("context") or 40) for t in found)
    for trajectory in found:
        trajectory.check()


def test_what_the_environment_has_ended_is_no_cut_episode():
    """In the only turn it is, as an answer of grpo: without an end it is cut off, whatever it was worth."""
    limits = LIMITS._replace(turn_tokens=2)
    assert {t.status for t in run(lambda: Asker(1), limits=limits)} == {"done"}
    assert {t.status for t in run(lambda: Asker(1), limits=limits._replace(turns=1))} == {"tokens"}
    assert {t.status for t in run(lambda: Asker(2), limits=limits)} == {"tokens"}


def test_a_limit_asks_for_a_last_reward():
    class Cut(Asker):
        def cut(self):
            return 0.25

    assert [turn.reward for turn in run(Cut, limits=LIMITS._replace(turns=2))[0].turns] == [1.0, 1.25]
    assert run(Cut)[0].turns[-1].reward == 1.0


def test_an_answer_that_does_not_fit_is_cut_or_the_oldest_turns_go():
    def long():
        return Asker(answer="?{}abcdefgh=")

    assert run(long, limits=LIMITS._replace(context=30))[0].status == "context"
    cut = run(long, limits=LIMITS._replace(context=30, overflow="cut"))[0].check()
    assert cut.status == "done" and len(cut.ids()) <= 30
    assert any("..." in text for kind, text in texts(cut) if kind == "observation")
    capped = run(long, limits=LIMITS._replace(observation=6))[0]
    assert {len(span.ids) for span in capped.segments[0] if span.kind == "observation"} <= {4, 5, 6}
    dropped = run(long, limits=LIMITS._replace(context=30, row=60, overflow="drop_oldest"))[0].check()
    assert dropped.status == "done" and len(dropped.segments) == 2 and len(dropped.turns) == 3
    first, second = dropped.segments
    assert second[0].ids[:3].tolist() == first[0].ids.tolist()  # the prompt
    assert second[0].ids[3:].tolist() == first[-1].ids.tolist()  # and the newest turn, as it was sampled
    assert second[1].kind == "observation" and all(len(dropped.ids(s)) <= 30 for s in (0, 1))


def test_segments_have_random_numbers_of_their_own():
    sampler = Parrot()
    run(lambda: Asker(answer="?{}abcdefgh="), sampler, LIMITS._replace(context=30, row=60, overflow="drop_oldest"))
    keys = [(draw.number, draw.segment, len(draw.tokens)) for draw in sampler.seen]
    assert len(set(keys)) == len(keys) and {segment for _, segment, _ in keys} == {0, 1}


class Failing(Asker):
    """Raises in the second turn of the first `count` episodes that reach it."""

    count, made, opened = 1, 0, []

    def __init__(self):
        super().__init__()
        type(self).made += 1
        self.opened.append(self)

    def step(self, said):
        if self.turn == 1 and type(self).count:
            type(self).count -= 1
            raise OSError("no server")
        return super().step(said)


def test_an_environment_that_raises_is_begun_once_more():
    expected = [trajectory.ids().tolist() for trajectory in run()]
    Failing.count, Failing.made, Failing.opened = 1, 0, []
    found = run(Failing)
    assert [t.status for t in found] == ["done"] * 4 and [t.ids().tolist() for t in found] == expected
    assert Failing.made == 5 and sum(env.closed for env in Failing.opened) == 1  # a new instance


def test_an_environment_that_raises_again_fails_its_row_only():
    class Broken(Asker):
        def step(self, said):
            if self.turn == 0 and said.startswith("b"):  # episode 1
                raise OSError("no server")
            return super().step(said)

    found = run(Broken)
    assert [t.status for t in found] == ["done", "error", "done", "done"]
    assert found[1].error == "OSError: no server" and found[1].check().count("sampled") == 0


def test_an_environment_that_hangs_fails_after_its_seconds():
    class Hangs(Asker):
        async def step(self, said):
            if self.turn == 0 and said.startswith("b"):  # episode 1
                await asyncio.Event().wait()
            return super().step(said)

    found = run(Hangs, limits=LIMITS._replace(seconds=0.01))
    assert [t.status for t in found] == ["done", "error", "done", "done"]
    assert found[1].error == "TimeoutError: no answer within agent.max_seconds=0.01"


@pytest.mark.parametrize("method", ["reset", "step"])
def test_an_environment_that_hangs_in_a_thread_fails_too(method):
    """Neither the end of `play` nor that of the program waits for the thread."""
    over, returned, threads = threading.Event(), [], []

    def hang():
        threads.append(threading.current_thread())
        over.wait(5)  # a time limit of the test only
        returned.append(True)

    class Hangs(Asker):
        async def reset(self, record, seed):
            if method == "reset":
                await asyncio.to_thread(hang)
            return super().reset(record, seed)

        async def step(self, said):
            await asyncio.to_thread(hang)

    found = run(Hangs, limits=LIMITS._replace(seconds=0.05))
    assert not returned and {t.status for t in found} == {"error"}
    assert found[1].error == "TimeoutError: no answer within agent.max_seconds=0.05"
    assert threads and all(thread.daemon for thread in threads)
    over.set()
    for thread in threads:
        thread.join()


def test_an_environment_may_answer_from_threads():
    class Threaded(Asker):
        async def step(self, said):
            return await asyncio.to_thread(super().step, said)

    assert [t.ids().tolist() for t in run(Threaded)] == [t.ids().tolist() for t in run()]


def test_an_answer_that_came_while_the_sampler_held_the_loop_is_in_time():
    async def late():
        loop, clock = asyncio.get_running_loop(), [0.0]
        loop.time = lambda: clock[0]
        there = loop.create_future()

        async def answer():
            loop.call_soon(there.set_result, "here")
            clock[0] += 100  # a call of the sampler
            return await there

        return await answers.answer(answer, seconds=1.0)

    assert asyncio.run(late()) == "here"


def test_what_an_environment_says_of_a_state_may_hang_too():
    class Hangs(Asker):
        async def state_key(self):
            await asyncio.Event().wait()

    assert {t.status for t in run(Hangs, limits=LIMITS._replace(seconds=0.01))} == {"error"}


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_a_reward_that_is_no_number_is_a_failure(wrong):
    class Wrong(Asker):
        def step(self, said):
            first = self.turn == 0  # of episode 1
            return super().step(said)._replace(reward=wrong if first and said.startswith("b") else 1.0)

        def cut(self):
            return wrong

    assert {t.status for t in run(Wrong, limits=LIMITS._replace(turns=1))} == {"error"}
    found = run(Wrong)
    assert [t.status for t in found] == ["done", "error", "done", "done"]
    assert found[1].error == f"ValueError: Wrong.step: reward={wrong!r} must be a finite number"


def test_a_group_that_begins_differently_is_refused():
    class Random(Asker):
        opened = iter(range(10))

        def reset(self, record, seed):
            super().reset(record, seed)
            return f"{next(self.opened)}?"

    with pytest.raises(ValueError, match="samples 0 and 1 of prompt 'p0' begin with different messages"):
        run(Random)


def test_a_prompt_that_is_too_long_is_named():
    with pytest.raises(ValueError, match="prompt 'p0' has 3 tokens in its environment; 1 to 2 fit"):
        run(longest_prompt=2)


def test_episodes_run_inside_a_running_loop():
    async def notebook():
        return run()

    assert [t.status for t in asyncio.run(notebook())] == ["done"] * 4


def test_a_state_that_is_described_by_nothing_is_a_state():
    """ "" of an environment is its key as any other; only one without state_key() has none."""

    class Tried(Asker):
        def state_key(self):
            return "|" * self.turn

    rows = as_rollout(run(Tried), prompt_length=4, completion_length=36, pad_id=0)
    firsts = rows.turns.state_keys[:, 0].tolist()
    assert -1 < firsts[0] == firsts[1] != firsts[2] == firsts[3]


class Forgetful(Asker):
    """The same, whose answers stand for all that was before."""

    rewrites = True

    def step(self, said):
        return super().step(said)._replace(anew=True)


def test_an_answer_can_stand_for_the_whole_history():
    """A new segment with nothing but the answer: what a turn has read is what the record says it has read."""
    sampler = Parrot()
    found = run(Forgetful, sampler)[0].check()
    told = [[(span.kind, TOKENIZER.decode(span.ids)) for span in spans] for spans in found.segments]
    assert [spans[0] for spans in told] == [("prompt", "0?"), ("prompt", "?1="), ("prompt", "?2=")]
    assert [[kind for kind, _ in spans] for spans in told] == [["prompt", "sampled"]] * 3 and found.status == "done"
    own = [draw for draw in sampler.seen if draw.number == 0]
    assert [draw.segment for draw in own] == [0, 1, 2] and all(not len(draw.tokens) for draw in own)
    assert [draw.prompt.tolist() for draw in own] == [spans[0].ids.tolist() for spans in found.segments]


@pytest.mark.parametrize(
    ("limits", "status"), [(dict(row=10), "context"), (dict(context=6), "context"), (dict(tokens=5), "tokens")]
)
def test_a_new_beginning_that_does_not_fit_ends_the_episode(limits, status):
    found = run(lambda: Forgetful(answer="?{}=123"), limits=LIMITS._replace(**limits))[0].check()
    assert found.status == status and len(found.segments) < 3


def test_a_new_beginning_must_be_announced():
    class Silent(Forgetful):
        rewrites = False

    with pytest.raises(ValueError, match="Silent.step has begun the history anew .*set `rewrites = True`"):
        run(Silent)


# --- Answers that cannot be used --------------------------------------------------------------------------------------


@pytest.mark.parametrize("anew", [False, True])
def test_an_answer_that_the_tokenizer_has_not_fails_its_row_only(anew):
    """What the model says may be in it."""

    class Echo(Asker):
        rewrites = True

        def step(self, said):
            first = self.turn == 0 and said.startswith("b")  # of episode 1
            step = super().step(said)
            wrong = [{"role": "tool", "content": "@"}]
            return step._replace(anew=anew, **({"messages": wrong} if first else {}))

    found = run(Echo, limits=LIMITS._replace(overflow="cut"))
    assert [t.status for t in found] == ["done", "error", "done", "done"]
    assert found[1].error.startswith("ValueError: character '@' at place 0 of '@' is not in the alphabet")
    assert found[1].check().count("sampled") == 3


def test_a_first_message_that_the_tokenizer_has_not_fails_its_row_only():
    class Echo(Asker):
        def reset(self, record, seed):
            return super().reset(record, seed).replace("0", "@")

    found = run(Echo)
    assert [t.status for t in found] == ["error", "error", "done", "done"] and "character '@'" in found[0].error


def test_half_a_surrogate_pair_in_a_call_of_a_tool_is_read_as_a_question_mark(tmp_path):
    """JSON can spell it, and an answer repeats it; a model's own tokenizer has no such text."""

    def add(a: int):
        """One more."""

    said = '<tool_call>{"name": "add", "arguments": {"\\ud83d": 1}}</tool_call>'
    tokenizer = load_tokenizer(tiny_tokenizers.mistral(tmp_path))

    class Caller(Parrot):
        def draw(self, draw):
            text = "7" if len(draw.tokens) else said
            ids = np.array([*tokenizer.encode_continuation(text), tokenizer.eos_id], np.int32)
            return Drawn(draw.number, ids, -np.ones(len(ids), np.float32), -np.ones(len(ids)), "eos")

    environments, limits = Environments(lambda: ToolUser([add])), Limits(turns=2, context=400, row=390)
    for found in play(asks(), environments, dialogue_of(tokenizer), Caller(), limits):
        text = tokenizer.decode(found.check().segments[0][2].ids)
        assert found.status == "done" and "unknown: ?; missing: a" in text


def test_half_a_surrogate_pair_in_an_error_or_a_state_can_be_recorded():
    class Quotes(Asker):
        def state_key(self):
            return "\ud83d"

        def step(self, said):
            if said.startswith("b"):  # episode 1
                raise ValueError("no \ud83d")
            return super().step(said)

    found = run(Quotes)
    assert found[0].turns[0].state_key == "?" and found[1].error == "ValueError: no ?"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (None, "TypeError: Wrong.step returned None, which is no Step"),
        ((1.0, True), "TypeError: Wrong.step returned (1.0, True), which is no Step"),
        (Step(reward=None), "TypeError: Wrong.step: reward=None must be a number"),
        (Step(reward="1"), "TypeError: Wrong.step: reward='1' must be a number"),
        (Step(reward=float("nan"), done=True), "ValueError: Wrong.step: reward=nan must be a finite number"),
        (Step(numbers=None), "TypeError: Wrong.step: numbers=None must be a dict"),
        (Step(numbers={"calls": None}), "TypeError: Wrong.step: numbers['calls']=None must be a number"),
        (Step("408"), "TypeError: Wrong.step: messages='408' must be a list of dicts"),
        (Step(["408"]), "TypeError: Wrong.step: messages[0]='408' must be a dict"),
        (Step([{"role": "tool", "content": 0}]), "TypeError: Wrong.step: messages[0]['content']=0 must be a text"),
        (Step([{"role": 1, "content": "0"}]), "TypeError: Wrong.step: messages[0]['role']=1 must be a text"),
    ],
)
def test_a_wrong_answer_is_a_failure_that_names_class_and_field(wrong, message):
    class Wrong(Asker):
        def step(self, said):
            first = self.turn == 0 and said.startswith("b")  # of episode 1
            return wrong if first else super().step(said)

    found = run(Wrong)
    assert [t.status for t in found] == ["done", "error", "done", "done"] and found[1].error == message


def test_a_wrong_first_message_or_last_reward_is_a_failure_that_names_its_method():
    class Wrong(Asker):
        def reset(self, record, seed):
            return [{"role": "user", "content": 7}]

    assert run(Wrong)[0].error == "TypeError: Wrong.reset: messages[0]['content']=7 must be a text"

    class Late(Asker):
        def cut(self):
            """No number."""

    assert run(Late, limits=LIMITS._replace(turns=2))[0].error == "TypeError: Late.cut: reward=None must be a number"


def test_messages_that_nobody_reads_may_be_anything():
    class Silent(Asker):
        def step(self, said):
            return Step(None, 1.0, done=True)

    assert {t.status for t in run(Silent)} == {"done"}


# --- Closing ----------------------------------------------------------------------------------------------------------


def test_an_environment_that_cannot_be_closed_ends_nothing():
    class Sticky(Failing):
        def close(self):
            super().close()
            raise OSError("gone")

    Failing.opened, Sticky.count, Sticky.made = [], 1, 0
    environments = Environments(Sticky)
    with pytest.warns(UserWarning, match="Sticky.close: OSError: gone"):
        found = play(asks(), environments, dialogue_of(TOKENIZER), Parrot(), LIMITS)
    assert [t.status for t in found] == ["done"] * 4
    with pytest.warns(UserWarning, match="Sticky.close: OSError: gone"):
        environments.close()
    assert len(Failing.opened) == 5 and all(env.closed for env in Failing.opened)


def test_an_environment_that_is_only_asked_something_is_closed():
    with probing(Asker()) as env:
        assert not env.closed
    assert env.closed
