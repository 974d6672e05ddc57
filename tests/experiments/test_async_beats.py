"""Heartbeats: who is there, who is silent, and what a process prints while it waits. No test waits for a time."""

import threading

import pytest

from experiments.parts import async_beats
from experiments.parts.async_beats import Beat, Watch, wait, word_of


class Link:
    """A link of words only, and a clock that a test moves."""

    def __init__(self):
        self.words, self.now, self.count, self.often = {}, 0.0, 0, threading.Event()

    def say(self, name, value):
        self.words[name] = value
        self.count += 1
        if self.count >= 3:
            self.often.set()

    def hear(self, name):
        return self.words.get(name)

    def clock(self):
        return self.now


def test_a_beat_says_another_word_each_time_and_ends(monkeypatch):
    monkeypatch.setattr(async_beats, "BEAT_S", 0.0)
    link = Link()
    with Beat(link, "trainer"):
        assert link.often.wait(600)
    said, (start, count, _) = link.count, link.words[word_of("trainer")]
    assert count == said - 1 >= 2
    with Beat(link, "trainer"):
        pass
    assert link.words[word_of("trainer")][0] != start, "a process that comes back is another one"


@pytest.mark.parametrize("kind", [OSError, RuntimeError])
def test_a_full_disk_does_not_end_a_beat(monkeypatch, kind):
    """Here, or (RuntimeError, over the network) on the trainer's side."""
    monkeypatch.setattr(async_beats, "BEAT_S", 0.0)
    link = Link()
    say, fails = link.say, iter([kind("full")])
    link.say = lambda *args: [say(*args), *(_raise(error) for error in fails)]
    with Beat(link, "trainer"):
        assert link.often.wait(600)


def _raise(error):
    raise error


def test_who_is_there():
    link = Link()
    watch = Watch(link, ["sampler_0", "sampler_1", "sampler_2"], link.clock)
    link.words = {word_of("sampler_0"): ["a", 0], word_of("sampler_1"): ["b", 7]}
    assert watch.look() == "sampler_0 is there; sampler_1 is there; sampler_2: not heard yet"
    link.now, link.words[word_of("sampler_0")] = 30.0, ["a", 6]
    assert watch.look() == "sampler_0 is there; sampler_1: silent for 30 s; sampler_2: not heard yet"
    link.now, link.words[word_of("sampler_1")] = 60.0, ["c", 0]  # it came back
    assert watch.look() == "sampler_0: silent for 30 s; sampler_1 is there; sampler_2: not heard yet"


def test_a_process_that_died_while_another_waited_is_silent(capsys):
    """It beats for 250 seconds. The line after 480 must not take its last word for a new one."""
    link = Link()
    watch = Watch(link, ["sampler"], link.clock)

    def look():
        link.now += 1.0
        if link.now <= 250 and link.now % 5 == 0:
            link.say(word_of("sampler"), ["a", link.now])

    with pytest.raises(TimeoutError, match=r"\(sampler: silent for 35\d s\)"):
        wait(look, 600, "groups", watch=watch, clock=link.clock)
    told = [line.partition("(")[2] for line in capsys.readouterr().err.splitlines()]
    assert told[:4] == ["sampler is there)"] * 4 and told[4].startswith("sampler: silent for 23")


def test_who_waits_says_so_and_ends_in_time(capsys):
    """Lines after 30, 60 and 120 seconds; then the error, with who was silent."""
    link = Link()
    watch = Watch(link, ["trainer"], link.clock)

    def look():
        link.now += 1.0

    with pytest.raises(
        TimeoutError, match=r"waited for weights, .* for flow.timeout_s=130 s \(trainer: not heard yet\)"
    ):
        wait(look, 130, "weights", watch=watch, clock=link.clock)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split("(")[0] for line in lines] == [f"waiting for weights for {s} s " for s in (31, 61, 121)]
    assert wait(lambda: "there", 130, "weights", watch=watch, clock=link.clock) == "there"
    assert not capsys.readouterr().err


def test_a_trainer_that_makes_its_last_steps_again_is_waited_for(capsys):
    """It comes back at version 2, 60 s each; who waits for version 20 counts from the last one, not from the first."""
    link = Link()
    watch = Watch(link, ["trainer"], link.clock)
    link.words[word_of("trainer")] = ["a", 0, 19]

    def look():
        link.now += 1.0
        if link.now <= 600 and link.now % 60 == 0:
            link.words[word_of("trainer")] = ["b", link.now, 2 + link.now // 60]
        elif link.now % 5 == 0:
            link.words[word_of("trainer")] = ["b", link.now, *link.words[word_of("trainer")][2:]]  # lives on, and hangs

    with pytest.raises(TimeoutError, match=r"flow.timeout_s=100 s \(trainer is there\)"):
        wait(look, 100, "the trainer's weights of version 20", watch=watch, clock=link.clock)
    assert 700 < link.now <= 700 + 2 * async_beats.BEAT_S, "of the last version, at 600 s, it hears at the next look"
    capsys.readouterr()


def test_a_beat_says_the_version(monkeypatch):
    monkeypatch.setattr(async_beats, "BEAT_S", 0.0)
    link = Link()
    beat = Beat(link, "trainer")
    beat.reached(7)
    with beat:
        assert link.often.wait(600)
    assert link.words[word_of("trainer")][2] == 7
