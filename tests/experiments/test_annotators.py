"""experiments/parts/annotators.py and configs/control/annotated.py: a model that labels captions beside a run."""

import json
import re
import threading

import jax
import numpy as np
import pytest

from configs.control import annotated
from experiments.control import ppo as control_ppo
from experiments.parts import annotators, check_config, control_runs
from rl_jax.control import relabelling
from rl_jax.envs import captions as texts
from rl_jax.models.agents.features import make_net
from rl_jax.rollout.envs.steps import Transitions
from rl_jax.rollout.lm import client
from rl_jax.training import checkpoint
from tests.experiments.loopback import speaking
from tests.experiments.one_program import one_program  # noqa: F401  a fixture
from tests.experiments.small import StopAfter, kept_signals  # noqa: F401  a fixture

QUICK = {"xla_backend_optimization_level": 0, "xla_cpu_multi_thread_eigen": False}


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(control_runs, "CPU_OPTIONS", QUICK)
    monkeypatch.setattr(client, "BACKOFF_S", 0.01)


def caption(observation):
    return f"place {int(observation[0])}"


def made(ask, **fields):
    plain = dict(goal="Go right.", pairs=False, wait=False, batch=2, features=8)
    return annotators.Annotator(caption, ask, **plain | fields)


def read(annotator, *places):
    return annotator.read(np.float32(places)[:, None])[0]


def asked(annotator, questions, waiting):
    """Its answers in the process that has read the captions, which needs no examples."""
    return annotator.answers(questions, waiting, np.full((*questions.shape, 1), np.nan, np.float32))


def finish(annotator):
    """Until its thread has nothing left to ask."""
    thread = annotator._thread
    if thread is not None:
        thread.join()


def test_the_run_does_not_wait_and_the_newest_are_asked_first():
    begun, go, batches = threading.Event(), threading.Event(), []

    def ask(questions):
        batches.append([question.split('"')[1] for question in questions])
        begun.set()
        assert go.wait(60)
        return ["YES" if "3" in question else "no." for question in questions]

    annotator = made(ask)
    hashes = read(annotator, 1, 2, 3, 4, 5)
    assert (hashes == read(annotator, 1, 2, 3, 4, 5)).all() and len(set(hashes.tolist())) == 5
    questions, waiting = hashes[:, None], np.array([True, False, False, False, False])
    assert np.isnan(asked(annotator, questions, waiting)).all()
    assert begun.wait(60), "asked in a thread, which is not done"
    assert np.isnan(asked(annotator, questions, np.ones(5, bool))).all()
    go.set()
    finish(annotator)
    assert batches == [["place 1"], ["place 5", "place 4"], ["place 3", "place 2"]]
    np.testing.assert_array_equal(asked(annotator, questions, np.ones(5, bool)), [0, 0, 1, 0, 0])
    assert np.isnan(asked(annotator, questions, waiting)[1:]).all(), "what does not wait has no answer"
    assert len(batches) == 3, "each is asked once"


def test_who_waits_has_the_answers_at_once_also_after_a_restart():
    questions = []
    for again in (False, True):
        annotator = made(lambda texts: [questions.append(texts) or "Better: 2" for _ in texts], pairs=True, wait=True)
        hashes = made(None).read(np.float32([[1], [2]]))[0] if again else read(annotator, 1, 2)
        found = annotator.answers(hashes[None], np.ones(1, bool), np.float32([[[1], [2]]]))
        np.testing.assert_array_equal(found, [1.0])
        assert annotator._thread is None
    assert questions[0] == questions[1] and '"place 2"' in questions[1][0]


class Restarted:
    """An annotator whose process may be another one."""

    def __init__(self, make):
        self._make = make

    def start(self):
        self._now = self._make()

    def read(self, observations):
        return self._now.read(observations)

    def answers(self, *told):
        return self._now.answers(*told)


@pytest.mark.parametrize("kind", annotated.KINDS)
def test_an_annotator_that_is_started_again_loses_no_answer(kind):
    """The first captions are not seen again, and asked about later: one question at a time."""

    def ask(questions):
        said = [re.findall(r'"place (\d)"', question) for question in questions]
        return [("YES" if x[0] > "2" else "NO") if len(x) == 1 else str(1 + (x[1] > x[0])) for x in said]

    beside = Restarted(lambda: made(ask, wait=True, pairs=kind == "ranking"))
    relabel = relabelling.by_captions(
        num_envs=1, observation_size=1, make_net=make_net, make_annotator=lambda spec, pairs: (beside, 8),
        annotator={}, kind=kind, captions=8, pairs=4, limit=1, hidden=(), learning_rate=0.1, steps=2,
    )  # fmt: skip
    apply = jax.jit(relabel.apply, compiler_options=QUICK)

    def run(starts):
        state, paid = relabel.begin(jax.random.key(0)), []
        for turn in range(6):
            if turn in starts:
                beside.start()
            places = np.float32([1, 2, 3] if turn == 0 else [4, 5, 5])[None, :, None]
            done, zero = np.zeros((1, 3), bool), np.zeros((1, 3), np.float32)
            state, rows = apply(state, Transitions(places, places, zero, zero, zero, done, done))
            paid.append(rows.rewards.tolist())
        return paid, state.answers.tolist()

    whole, halves = run({0}), run({0, 1, 3})
    np.testing.assert_array_equal(halves[0], whole[0])
    np.testing.assert_array_equal(halves[1], whole[1])
    assert np.sum(~np.isnan(whole[1])) > 3


@pytest.mark.parametrize("wait", [False, True])
def test_what_fails_beside_the_run_stops_it(wait):
    def ask(questions):
        raise ConnectionError("nobody there")

    annotator = made(ask, wait=wait)
    questions = read(annotator, 1)[:, None]
    with pytest.raises(ConnectionError, match="nobody there"):
        asked(annotator, questions, np.ones(1, bool))
        finish(annotator)
        asked(annotator, questions, np.ones(1, bool))


def test_answers_in_words():
    labels, pairs = made(None), made(None, pairs=True)
    assert [labels._read(text) for text in ("YES", "It is not: no", "No... yes!", "perhaps")] == [1.0, 0.0, 1.0, 0.0]
    assert [pairs._read(text) for text in ("1", "Message 2.", "none", "?")] == [0.0, 1.0, 0.5, 0.5]
    np.testing.assert_array_equal(annotators.words_of("The shop, the", 1), [3.0])
    one = annotators.words_of("You hold", 64)
    assert one.sum() == 2 and one.max() == 1


def test_captions_of_errands():
    eye = np.eye(5, dtype=np.float32)
    said = [texts.errands(np.append(eye[place], has)) for place, has in ((1, 0), (4, 0), (0, 1), (3, 1), (4, 1))]
    assert said == [
        "Your hands are empty. The shop is 1 step away.",
        "You stand at the house with empty hands.",
        "You are in the shop and hold the parcel.",
        "You hold the parcel. The house is 1 step away.",
        "You hand over the parcel. The errand is done.",
    ]


def small(words="smoke", **fields):
    config = annotated.get_config(words)
    with config.unlocked():
        config.update_from_flattened_dict({name.replace("__", "."): value for name, value in fields.items()})
    return config


def test_the_words_and_what_is_refused():
    for word in (*annotated.KINDS, "alone"):
        check_config.check(annotated.get_config(word))
    with pytest.raises(ValueError, match="choose at most one reward"):
        annotated.get_config("alone,ranking")
    spec = annotated.get_config("waiting").algorithm.relabel.annotator.to_dict()
    assert spec["wait"] and annotators.make_annotator(spec, False)[1] == 32
    for changed, said in (
        (dict(batch=0), "batch=0"),
        (dict(mood="good"), "has no field mood"),
        (dict(ask=dict(fn="by_magic")), "has no function 'by_magic'"),
    ):
        with pytest.raises(ValueError, match=said):
            annotators.make_annotator(spec | changed, False)
    del spec["goal"]
    with pytest.raises(ValueError, match=r"lacks goal: set algorithm\.relabel\.annotator\.goal"):
        annotators.make_annotator(spec, False)


@pytest.mark.slow
@pytest.mark.usefixtures("kept_signals", "one_program")
def test_a_run_with_a_server_and_its_resumption(tmp_path, monkeypatch):
    """Bit for bit, since the run waits: the second half knows nothing of the first but its checkpoint."""
    everyone = []

    class Noted(annotators.Annotator):
        def __init__(self, *args, **keywords):
            super().__init__(*args, **keywords)
            everyone.append(self)

    def answer(text):
        return "<think>is it?</think> YES" if "hold the parcel" in text else "NO"

    monkeypatch.setattr(annotators, "Annotator", Noted)
    with speaking(answer) as server:
        config = small("smoke,server,waiting", algorithm__relabel__annotator__ask__url=server.url)
        config.env.length = 5
        control_ppo.run(config, tmp_path / "whole")
        asked = len(server.texts)
        assert 0 < asked == len(set(server.texts)) and all(annotated.GOAL in text for text in server.texts)
        with monkeypatch.context() as patch:
            patch.setattr(checkpoint, "StopSignal", StopAfter())
            control_ppo.run(config, tmp_path / "halves")
        assert not (tmp_path / "halves" / "final.json").exists()
        for annotator in everyone:
            for known in (annotator._texts, annotator._words, annotator._known):
                known.clear()
        control_ppo.run(config, tmp_path / "halves")
        assert len(server.texts) == asked, "what was asked before is remembered"
    for name in ("metrics.jsonl", "final.json"):
        assert (tmp_path / "halves" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    last = json.loads((tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["relabel/labelled"] == last["relabel/captions"] <= asked and last["relabel/waiting"] == 0


@pytest.mark.slow
def test_the_sparse_reward_is_found_with_the_annotator_and_not_without():
    """Two seeds each, in one program: paid for what the annotator likes too, or for the parcel at the house alone."""
    config = annotated.get_config("retrieval,waiting")
    config.update(num_seeds=2, log_every=6)
    config.checkpoint.every = 6
    config.train.total_steps = 18 * 1024
    config.eval.num_episodes = 8
    config.sweep = (("algorithm.relabel.coef", (config.algorithm.relabel.coef, 0.0)),)
    program = control_runs.make_program(config)
    state = program.init()
    for _ in range(3):
        state, metrics = program.advance(state)
    found = np.asarray(metrics["eval/return"]).reshape(2, 2)  # of each seed, with and without
    assert found[:, 0].min() > 0.9 and found[:, 1].max() < 0.5, found
