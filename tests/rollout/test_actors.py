"""rl_jax/rollout/actors: stages, frames, the fleet that loses workers, and which weights act at which step."""

import io
import json
import os
import threading
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax.envs.host_worlds import Shuttle
from rl_jax.rollout.actors import workers as places
from rl_jax.rollout.actors.acting import Acting, Inline, Piece, Remote, as_rows, make_act
from rl_jax.rollout.actors.fleet import Fleet, Layout
from rl_jax.rollout.actors.sampler import Sampler, Schedule, runs_of, version_at, versions_behind
from rl_jax.rollout.actors.stage import Episode, Ledger, Message, Stage
from rl_jax.rollout.actors.workers import (
    ActorError,
    LostError,
    ProcessWorker,
    ThreadWorker,
    answered_frame,
    read_frame,
    serve,
    to_frame,
)

NONE = np.zeros((0,), np.int32)


def play(stage, envs, actions):
    """What the stage answers to these actions [T, k], one step after the other."""
    return [stage.handle(Message("step", {"envs": envs}, [row])).arrays for row in actions]


def same(left, right):
    for a, b in zip(left, right, strict=True):
        assert a.dtype == b.dtype and (a == b).all()


def test_steps_of_many_environments_become_their_rows():
    shapes = [(4,), (4,), (2,), (), (), (), ()]  # of two environments and three steps
    steps = [
        [
            np.full((2, *shape), 10 * t + n) + np.arange(2).reshape(-1, *[1] * len(shape))
            for n, shape in enumerate(shapes)
        ]
        for t in range(3)
    ]
    for n, (leaf, shape) in enumerate(zip(as_rows(steps), shapes, strict=True)):
        assert leaf.shape == (2, 3, *shape)
        for (row, t), value in np.ndenumerate(leaf.reshape(2, 3, -1)[..., 0]):
            assert value == 10 * t + n + row


def test_a_thread_that_still_works_does_not_hold_the_program():
    worker = ThreadWorker(lambda message: message)
    assert worker._thread.daemon
    worker.close()


def test_an_environment_that_ends_starts_its_next_episode_and_shows_its_last_state():
    stage = Stage(Shuttle, seed=0)
    stage.restore(3, Episode(0, []))
    for _ in range(9):
        now, last, reward, terminated, truncated = stage.step([3], np.asarray([1]))
        if terminated[0]:
            break
    assert terminated[0] and not truncated[0] and last[0, 0] == 1.0 and reward[0] == last[0, 1]
    fresh = Stage(Shuttle, seed=0)
    fresh.restore(3, Episode(1, []))
    same([now], [fresh.observations([3])])


def test_a_stage_is_found_again_from_the_ledger_as_json():
    actions = np.random.default_rng(0).integers(0, 2, (30, 4)).astype(np.int32)
    stage, ledger, envs = Stage(Shuttle, seed=5), Ledger(4), [0, 1, 2, 3]
    stage.handle(ledger.restore_message(envs, NONE))
    for row, arrays in zip(actions[:20], play(stage, envs, actions[:20]), strict=True):
        ledger.add(envs, row, arrays[3] | arrays[4])
    other = Ledger(4)
    other.set_state(json.loads(json.dumps(ledger.get_state())), NONE.dtype)
    again = Stage(Shuttle, seed=5)
    same(again.handle(other.restore_message(envs, NONE)).arrays, [stage.observations(envs)])
    for left, right in zip(play(stage, envs, actions[20:]), play(again, envs, actions[20:]), strict=True):
        same(left, right)


def test_an_environment_that_is_no_function_of_its_actions_is_named():
    stage = Stage(Shuttle, seed=0)
    with pytest.raises(RuntimeError, match="environment 7 ended episode 0 earlier than it did before"):
        stage.restore(7, Episode(0, [np.int32(1)] * 9))


def test_frames_hold_every_type_and_serve_ends_with_its_input():
    arrays = [np.arange(6, dtype=np.float32).reshape(2, 3), np.asarray([True, False]), np.zeros((0, 2), np.int32)]
    sent = to_frame(Message("step", {"envs": [1]}, arrays))
    found = read_frame(io.BytesIO(sent).read)
    assert (found.kind, found.meta) == ("step", {"envs": [1]})
    same(found.arrays, arrays)
    number, turned = read_frame(io.BytesIO(to_frame(Message("step", {}, [np.float32(3.0), arrays[0].T]))).read).arrays
    assert number.shape == () and number == 3.0 and turned.shape == (3, 2) and (turned == arrays[0].T).all()

    def handle(message):
        if message.kind == "bad":
            raise OSError("no such thing")
        return message

    out = io.BytesIO()
    serve(handle, io.BytesIO(sent + to_frame(Message("bad"))), out)
    out.seek(0)
    assert read_frame(out.read).kind == "step"
    assert read_frame(out.read).meta == {"text": "OSError: no such thing"}


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_every_environment_has_one_worker_and_a_block_stays_together(workers):
    layout = Layout(num_envs=24, block=2, ring=3, workers=workers).check()
    fleet = Fleet(None, layout, NONE)
    assert sorted(env for w in range(workers) for env in fleet.envs_of(w)) == list(range(24))
    assert [env for g in range(3) for env in layout.envs(layout.blocks(g))] == list(range(24))
    assert all(len(fleet.envs_of(w, [g])) % 2 == 0 for w in range(workers) for g in range(3))


class Lossy(ThreadWorker):
    """A worker that is gone at its n-th answer, for each n of `losses`, counted over all of them."""

    def __init__(self, handle, losses):
        super().__init__(handle)
        self.losses = losses

    def receive(self, timeout_s):
        self.losses[0] += 1
        if self.losses[0] in self.losses[1:]:
            raise LostError("gone")
        return super().receive(timeout_s)


def stepped(losses, workers):
    """The answers of a fleet to 40 steps of both groups, two of them always without an answer; times restarted."""
    layout = Layout(num_envs=8, block=2, ring=2, workers=workers)
    fleet = Fleet(lambda worker: Lossy(Stage(Shuttle, 3).handle, losses), layout, NONE)
    fleet.begin()
    actions, result = np.random.default_rng(1).integers(0, 2, (40, 8)).astype(np.int32), []
    for row in actions:
        parts = [(w, fleet.envs_of(w, [group])) for group in range(2) for w in range(workers)]
        for worker, envs in parts:
            fleet.ask(worker, Message("step", {"envs": envs}, [row[envs]]))
        together = [np.zeros((8, 2), np.float32), np.zeros(8, np.float32)]
        for worker, envs in parts:
            arrays = fleet.answer(worker).arrays
            fleet.ledger.add(envs, row[envs], arrays[3] | arrays[4])
            together[0][envs], together[1][envs] = arrays[0], arrays[2]
        result += together
    fleet.close()
    return result, fleet.restarted


def test_workers_that_die_lose_nothing_and_their_number_changes_nothing():
    whole, restarted = stepped([0], workers=1)
    assert restarted == 0
    for losses, workers in (([0], 2), ([0, 5, 6, 40, 77], 1), ([0, 1, 9, 60, 61, 62], 2)):
        found, restarted = stepped(losses, workers)
        same(found, whole)
        assert restarted == len(losses) - 1


def test_a_fleet_whose_worker_dies_again_and_again_or_whose_environment_raises_says_so():
    layout = Layout(num_envs=2, block=2, ring=1, workers=1)
    fleet = Fleet(lambda worker: Lossy(Stage(Shuttle, 3).handle, list(range(99))), layout, NONE, restarts=2)
    with pytest.raises(ActorError, match=r"actor 0 was lost 3 times in a row \(actors.restarts=2\): gone"):
        fleet.begin()

    def broken():
        raise ValueError("a missing file")

    fleet = Fleet(lambda worker: ThreadWorker(Stage(broken, 3).handle), layout, NONE)
    with pytest.raises(ActorError, match=r"actor 0, environments \[0, 1\]: ValueError: a missing file"):
        fleet.begin()


PIECES = [Piece(0, 7, 0, np.float32([0.2])), Piece(7, 12, 1, np.float32([0.9])), Piece(12, 40, 4, np.float32([0.4]))]


def chosen(params, t, blocks, observations):
    """An actor's forward without a network; its actions are not the environments' own."""
    block = np.repeat(blocks, len(observations) // len(blocks))
    outputs = np.asarray(params[0]) + 0.37 * t + 0.21 * block + observations[:, 0]
    actions = np.floor(4 * outputs).astype(np.int32)
    return outputs, actions, actions // 2 % 2


def alone(env, block):
    """(the steps of one environment, as in Transitions; its ledger), played by itself."""
    stage, ledger, rows = Stage(Shuttle, 3), Ledger(8), []
    stage.restore(env, Episode(0, []))
    for piece in PIECES:
        for t in range(piece.first, piece.last):
            shown = stage.observations([env])
            outputs, actions, own = chosen(piece.params, t, [env // block], shown)
            _, last, reward, terminated, truncated = stage.step([env], own)
            rows.append([x[0] for x in (shown, last, outputs, actions, reward, terminated, truncated)])
            ledger.add([env], own, terminated | truncated)
    return [np.stack(leaf) for leaf in zip(*rows, strict=True)], ledger.get_state()[env]


@pytest.mark.parametrize(("inline", "workers", "losses"), [(False, 2, [0]), (False, 1, [0, 9]), (True, 2, [0])])
def test_actors_give_each_environments_own_steps_and_note_its_own_actions(inline, workers, losses):
    """With the policy beside them or in them, of any number, and where one was lost."""
    layout = Layout(num_envs=8, block=2, ring=2, workers=workers)
    stage = (lambda: Acting(Shuttle, 3, chosen, 2)) if inline else (lambda: Stage(Shuttle, 3))
    fleet = Fleet(lambda worker: Lossy(stage().handle, losses), layout, NONE)
    part = Inline(fleet) if inline else Remote(fleet, chosen)
    part.begin()
    found = part.segment(iter(PIECES))
    fleet.close()
    assert fleet.restarted == len(losses) - 1 and sum(number for number, _ in fleet.ledger.get_state()) > 3
    for env in range(8):
        rows, past = alone(env, 2)
        for ours, theirs in zip(found, rows, strict=True):
            np.testing.assert_allclose(ours[env], theirs, rtol=1e-6)
        assert fleet.ledger.get_state()[env] == past


def test_the_forward_draws_each_block_by_step_and_number_and_gives_both_kinds_of_actions():
    """Two blocks of three; the noise of block b in step t is that of the key folded with t, then with b."""
    distribution = SimpleNamespace(
        noise=lambda key, shape: jax.random.key_data(key)[0] % 97 + jnp.arange(6.0).reshape(*shape, 2),
        sample=lambda outputs, noise: outputs + noise,
        to_env=lambda actions: -2.0 * actions,
    )
    agent = SimpleNamespace(distribution=distribution, policy=lambda params, observations: params["w"] * observations)
    key, observations = jax.random.key(7), np.arange(12, dtype=np.float32).reshape(6, 2)
    act = make_act(agent, lambda vector: {"w": vector[0]}, key, block=3)
    outputs, actions, own = act(np.float32([0.5]), 4, np.int32([5, 2]), observations)
    keys = [jax.random.fold_in(jax.random.fold_in(key, 4), block) for block in (5, 2)]
    drawn = [np.asarray(jax.random.key_data(k))[0] % 97 + np.arange(6.0).reshape(3, 2) for k in keys]
    expected = 0.5 * observations + np.concatenate(drawn)
    np.testing.assert_allclose(outputs, 0.5 * observations)
    np.testing.assert_allclose(actions, expected, rtol=1e-6)
    np.testing.assert_allclose(own, -2.0 * expected, rtol=1e-6)


def test_a_worker_that_answers_in_between_may_die_as_often_again():
    """restarts counts the losses in a row."""
    layout = Layout(num_envs=2, block=2, ring=1, workers=1)
    fleet = Fleet(lambda worker: Lossy(Stage(Shuttle, 3).handle, [0, 2, 5, 8]), layout, NONE, restarts=1)
    losses = fleet._start(0).losses
    fleet._start = lambda worker: Lossy(Stage(Shuttle, 3).handle, losses)
    fleet.begin()
    for _ in range(6):
        fleet.ask(0, Message("step", {"envs": [0, 1]}, [np.zeros(2, np.int32)]))
        fleet.answer(0)
    fleet.close()
    assert fleet.restarted == 3


def test_answers_say_what_was_done():
    stage = Acting(Shuttle, 0, chosen, 1)
    asked = [
        Message("restore", {"envs": [[0, 0, 0]]}, [NONE]),
        Message("step", {"envs": [0]}, [np.ones(1, np.int32)]),
        Message("act", {"first": 1, "last": 3}, [np.float32([0.5])]),
    ]
    assert [stage.handle(message).kind for message in asked] == ["restored", "stepped", "acted"]
    found = read_frame(io.BytesIO(answered_frame(stage.handle, to_frame(Message("jump")))).read)
    assert (found.kind, found.meta) == (
        "error",
        {"text": "ValueError: an actor was sent 'jump': it knows restore and step"},
    )
    assert Ledger(1).restore_message([0], NONE)[:2] == ("restore", {"envs": [[0, 0, 0]]})


def test_a_process_is_waited_for_until_one_deadline_and_read_in_pieces(monkeypatch):
    """Seven seconds of ten are over, and a part is there; then twelve, and nothing has come."""
    out, into = os.pipe()
    frame = to_frame(Message("stepped", {}, [np.arange(5)]))
    now, waited = iter([0.0, 7.0, 8.0, 12.0, *range(9)]), []

    def select(files, *others):
        waited.append(others[-1])
        return ([] if len(waited) == 3 else files), [], []

    monkeypatch.setattr(places, "time", SimpleNamespace(monotonic=lambda: next(now)))
    monkeypatch.setattr(places, "select", SimpleNamespace(select=select))
    worker = object.__new__(ProcessWorker)
    worker.pid = 5
    with open(out, "rb", buffering=0) as stdout, open(into, "wb", buffering=0) as stdin:
        worker._process = SimpleNamespace(stdout=stdout, wait=lambda: 9)
        stdin.write(frame[:12])
        with pytest.raises(LostError, match="actor process 5 has said nothing for 10.0 s"):
            worker.receive(10.0)
        assert waited == [3.0, 2.0, 0.0]
        stdin.write(frame)
        same(worker.receive(10.0).arrays, [np.arange(5)])
        stdin.close()
        with pytest.raises(LostError, match="actor process 5 has ended with status 9"):
            worker.receive(10.0)
        assert 0.0 not in waited[3:]


def test_a_process_is_written_to_when_it_reads_and_is_lost_when_it_does_not(monkeypatch):
    """What is written is read whole at the other end; of ten seconds seven are over when the pipe is full."""
    out, into = os.pipe()
    worker, now, waited = object.__new__(ProcessWorker), iter([0.0, 7.0, 0.0, 7.0]), []
    monkeypatch.setattr(places, "time", SimpleNamespace(monotonic=lambda: next(now)))
    with open(out, "rb", buffering=0) as stdout, open(into, "wb", buffering=0) as stdin:
        worker.pid, worker._timeout_s, worker._process = 5, 10.0, SimpleNamespace(stdin=stdin)
        worker.send(Message("step", {"envs": [1]}, [np.arange(5)]))
        found = read_frame(stdout.read)
        assert (found.kind, found.meta) == ("step", {"envs": [1]})
        same(found.arrays, [np.arange(5)])
        full = SimpleNamespace(select=lambda *args: waited.append(args[-1]) or ([], [], []))
        monkeypatch.setattr(places, "select", full)
        with pytest.raises(LostError, match="actor process 5 has read nothing for 10.0 s"):
            worker.send(Message("step"))
    assert waited == [3.0]


@pytest.mark.parametrize(("steps", "delay"), [(8, 0), (8, 5), (8, 8), (4, 11), (1, 3)])
def test_the_counted_schedule_is_a_delay_of_the_weights(steps, delay):
    for number in range(1, 6):
        first, last = (number - 1) * steps, number * steps
        runs = runs_of(first, last, steps, delay)
        told = [version for begin, end, version in runs for _ in range(begin, end)]
        assert told == [version_at(t, steps, delay) for t in range(first, last)]
        assert [runs[0][0], runs[-1][1]] == [first, last] and all(
            a[1] == b[0] for a, b in zip(runs, runs[1:], strict=False)
        )
        # What acts is published by then, and a checkpoint after update number - 1 has it.
        assert max(told) <= number - 1 and min(told) >= max(0, number - 1 - versions_behind(steps, delay))


def test_a_recorded_schedule_is_followed_step_by_step():
    schedule = Schedule(4, None, {2: [0, 0, 1, 1], 3: [2, 2, 2, 2]})
    for by_steps in (True, False):
        assert schedule.runs(2, by_steps=by_steps) == [(4, 6, 0), (6, 8, 1)]
        assert schedule.runs(3, by_steps=by_steps) == [(8, 12, 2)]
    with pytest.raises(ValueError, match="segment 4: the recorded run has 0 steps of it, not 4"):
        schedule.runs(4, by_steps=True)
    with Sampler(Told(), NoLedger(), num_steps=4, delay=0, recorded=schedule.recorded, first=2, total=3) as sampler:
        for version in range(3):
            sampler.publish(version, np.asarray([float(version)]))
        assert [sampler.take().versions.tolist() for _ in range(2)] == [[0, 0, 1, 1], [2, 2, 2, 2]]


@pytest.mark.parametrize("shares", [1, 2, 3])
def test_shares_of_the_ring_are_whole_groups_and_together_everything(shares):
    whole = Layout(num_envs=24, block=2, ring=3, workers=2)
    fleets = [Fleet(None, whole._replace(share=(i, shares)), NONE) for i in range(shares)]
    assert sorted(env for fleet in fleets for w in range(2) for env in fleet.envs_of(w)) == list(range(24))
    for i, fleet in enumerate(fleets):
        assert fleet.layout.own == [env for group in range(i, 3, shares) for env in whole.envs(whole.blocks(group))]
    with pytest.raises(ValueError, match="actors.policies=4 must be at most actors.ring=3"):
        whole._replace(share=(0, 4)).check()


class Told:
    """An acting part that only notes its pieces."""

    by_steps = True

    def begin(self):
        pass

    def segment(self, pieces):
        return [(piece.first, piece.version, float(piece.params[0])) for piece in pieces]


class NoLedger:
    def get_state(self):
        return None


def test_the_counted_sampler_uses_each_version_where_it_must_whenever_it_comes():
    settings = dict(num_steps=4, delay=2, first=1, total=5)
    with Sampler(Told(), NoLedger(), **settings) as sampler:
        sampler.publish(0, np.asarray([0.0]))
        for number in range(1, 6):
            segment = sampler.take()
            assert segment.versions.tolist() == [version_at(t, 4, 2) for t in range(4 * number - 4, 4 * number)]
            assert all(version == value for _, version, value in segment.rows)
            sampler.publish(number, np.asarray([float(number)]))


def test_the_free_sampler_takes_the_newest_and_ends_while_it_waits_for_room():
    with Sampler(Told(), NoLedger(), num_steps=2, delay=None, ahead=1, first=1, total=9) as sampler:
        sampler.publish(3, np.asarray([3.0]))
        assert sampler.take().versions.tolist() == [3, 3]
    assert not [thread for thread in threading.enumerate() if thread.name == "sampler" and thread.is_alive()]
    by_default = Sampler(Told(), NoLedger(), num_steps=2, delay=None, first=1, total=9)
    assert by_default._done.maxsize == 1  # segments that wait for the trainer


def test_the_end_sleeps_between_its_looks_at_the_thread():
    """A look that does not wait would take the processor from the thread that it waits for."""
    waited = []
    sampler = Sampler(Told(), NoLedger(), num_steps=2, delay=None, first=1, total=9)
    sampler._thread = SimpleNamespace(is_alive=lambda: len(waited) < 3)
    sampler._done = SimpleNamespace(get=lambda timeout: waited.append(timeout))
    sampler.__exit__()
    assert len(waited) == 3 and min(waited) > 0


def test_what_the_thread_raises_is_raised_to_the_trainer():
    class Broken(Told):
        def segment(self, pieces):
            raise ActorError("environment 3: no")

    with Sampler(Broken(), NoLedger(), num_steps=2, delay=0, first=1, total=9) as sampler:
        with pytest.raises(ActorError, match="environment 3: no"):
            sampler.take()
