"""experiments/control/asynchronous.py: equal bits whoever acts, exact V-trace, resume, kills, and what it learns."""

import concurrent.futures
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
import types
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs.control import asynchronous as configs
from experiments.control import asynchronous as control_async
from experiments.parts import control_actors, control_learner, control_roles
from experiments.parts.async_links import Secrets, make_link
from experiments.tools import control_kills
from rl_jax.control.algorithm import assign
from rl_jax.flow import payload
from rl_jax.flow.requests import RequestServer
from rl_jax.rollout.actors.sampler import Segment
from rl_jax.rollout.actors.workers import LostError, ThreadWorker
from rl_jax.rollout.envs.steps import Transitions
from rl_jax.training import checkpoint
from tests.advantages.test_steps import loop_vtrace
from tests.experiments import programs
from tests.experiments.shared_programs import share_programs, sharing  # noqa: F401  fixtures
from tests.experiments.small import StopAfter, kept_signals  # noqa: F401  a fixture
from tests.paths import REPO_ROOT

FILES = ("metrics.jsonl", "final.json")
TOKEN = "a-token-of-this-test"
pytestmark = pytest.mark.usefixtures("kept_signals")


def small(words="smoke", **fields):
    """The smoke config with other fields: actors__count=1."""
    config = configs.get_config(words)
    config.update_from_flattened_dict({name.replace("__", "."): value for name, value in fields.items()})
    return config


def rows_of(workdir):
    return [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]


def assert_same(left, right):
    for name in FILES:
        assert (left / name).read_bytes() == (right / name).read_bytes(), name


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run of two threads."""
    folder, handlers = (
        tmp_path_factory.mktemp("whole"),
        {s: signal.getsignal(s) for s in (signal.SIGTERM, signal.SIGINT)},
    )
    control_async.run(small(), folder)
    for number, handler in handlers.items():
        signal.signal(number, handler)
    return folder


@pytest.mark.slow
def test_the_update_is_v_trace_of_what_the_actors_computed():
    config = small(algorithm__whiten=False)
    agent, algorithm = control_actors.make_agent(config)
    params, stale = (agent.init(jax.random.key(seed)) for seed in (0, 1))
    rng = np.random.default_rng(0)
    shown, led_to = (jnp.asarray(rng.normal(size=(3, 7, 2)), jnp.float32) for _ in range(2))
    outputs = 3.0 * agent.policy(stale, shown.reshape(21, 2)).reshape(3, 7, 2) + rng.normal(size=(3, 7, 2))
    actions = rng.integers(0, 2, (3, 7)).astype(np.int32)
    ends = rng.random((2, 3, 7)) < 0.2
    terminated, truncated = ends[0], ends[1] & ~ends[0]
    rewards = rng.normal(size=(3, 7)).astype(np.float32)
    rows = Transitions(shown, led_to, jnp.float32(outputs), actions, rewards, terminated, truncated)
    batch, _ = assign(agent, params, rows, lambda x: x, algorithm)

    def log_probs(logits):
        logits = np.asarray(logits, np.float64).reshape(3, 7, 2)
        whole = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        return np.take_along_axis(whole, actions[..., None], -1)[..., 0]

    rho = np.exp(log_probs(agent.policy(params, shown.reshape(21, 2))) - log_probs(rows.outputs))
    assert rho.max() > 1.2 and rho.min() < 0.8
    values, following = (np.asarray(agent.value(params, x.reshape(21, 2))).reshape(3, 7) for x in (shown, led_to))
    clip = dict(clip_rho=1.0, clip_c=1.0, clip_pg_rho=1.0)
    advantages, targets = loop_vtrace(rewards, values, following, terminated, truncated, rho, 0.99, 1.0, clip)
    np.testing.assert_allclose(np.asarray(batch.policy.advantages).reshape(3, 7), advantages, atol=2e-5)
    np.testing.assert_allclose(np.asarray(batch.returns).reshape(3, 7), targets, atol=2e-5)


@pytest.mark.slow
def test_stale_weights_act_as_the_schedule_says(whole):
    rows = rows_of(whole)
    assert [row["step"] for row in rows] == list(range(7)) and rows[-1]["env_steps"] == 6 * 64
    # 5 of 8 steps are acted in by the version before the newest; the first segment has only version 0.
    assert [row["lag/mean"] for row in rows[1:]] == [0.0] + [0.625] * 5
    assert rows[1]["lag/gap"] == 0.0 and all(row["lag/gap"] > 0.0 for row in rows[2:])
    assert {"eval/return", "episode/return", "lag/rho", "value/mean"} <= set(rows[6])


@pytest.mark.slow
def test_the_number_of_actors_and_their_deaths_change_no_bit(whole, tmp_path, monkeypatch):
    control_async.run(small(actors__count=1), tmp_path / "one")
    assert_same(tmp_path / "one", whole)
    answers = [0]

    class Lossy(ThreadWorker):
        def receive(self, timeout_s):
            answers[0] += 1
            if answers[0] in (1, 30, 31, 90):
                raise LostError("gone")
            return super().receive(timeout_s)

    monkeypatch.setattr(control_actors, "ThreadWorker", Lossy)
    control_async.run(small(), tmp_path / "lossy")
    assert answers[0] > 90
    assert_same(tmp_path / "lossy", whole)


class Policies:
    """Policy workers in threads of this process, with a link to a trainer in this process. Use it in a `with`.

    servers: where the actors of each come to, if they are not its own.
    """

    def __init__(self, config, workdir, *, servers=(None, None)):
        self.said, self._config, self._workdir = [None] * config.actors.policies, config, workdir
        self._threads = [
            threading.Thread(target=self._run, args=(index, servers[index])) for index in range(len(self.said))
        ]

    def _run(self, index, server):
        link = make_link("sampler", self._workdir, "")
        self.said[index] = control_async.run_policy(self._config, self._workdir, link, index=index, server=server)

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        link = make_link("trainer", self._workdir, "", keep=control_roles.keep_of(self._config))
        control_async.run(self._config, self._workdir, link=link)
        return self

    def __exit__(self, *error):
        for thread in self._threads:
            thread.join(600)
            assert not thread.is_alive()


@pytest.fixture
def quick(monkeypatch):
    """Links look more often."""
    monkeypatch.setattr("rl_jax.flow.folder._POLL_S", 0.002)
    with mock.patch.object(control_roles, "POLL_S", 0.02):  # a free policy worker waits so long for what may never come
        yield


@pytest.mark.slow
def test_inline_actors_change_no_bit_with_their_number_and_resume(tmp_path, monkeypatch):
    control_async.run(small("inline,smoke"), tmp_path / "two")
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "StopSignal", StopAfter(3))
        control_async.run(small("inline,smoke", actors__count=1), tmp_path / "one")
    assert not (tmp_path / "one" / "final.json").exists()
    control_async.run(small("inline,smoke", actors__count=1), tmp_path / "one")
    assert_same(tmp_path / "one", tmp_path / "two")
    config, server = small("inline,smoke"), RequestServer(token=TOKEN)  # the same over the network
    actor = lambda index: control_async.run_actor(config, server.address, Secrets(TOKEN), index=index)  # noqa: E731
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        ends = pool.map(actor, range(2))
        with Policies(config, tmp_path / "far", servers=(server,)):
            pass
        assert list(ends) == [True, True]
    assert_same(tmp_path / "far", tmp_path / "two")


@pytest.mark.slow
def test_a_run_that_is_stopped_goes_on_bit_for_bit_with_weights_of_three_updates_ago(tmp_path, monkeypatch):
    delay, whole = 19, tmp_path / "whole"
    control_async.run(small(flow__delay=delay), whole)
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "StopSignal", StopAfter(4))
        control_async.run(small(flow__delay=delay), tmp_path / "halves")
    assert not (tmp_path / "halves" / "final.json").exists()
    control_async.run(small(flow__delay=delay), tmp_path / "halves")
    assert_same(tmp_path / "halves", whole)


@pytest.mark.slow
def test_processes_give_the_bits_of_threads_after_kills_of_an_actor_and_of_the_trainer(whole, tmp_path):
    """The trainer that goes on is this process: the start of one is what costs here."""
    command = [sys.executable, "-m", "experiments.control.asynchronous"]
    command += ["--config=configs/control/asynchronous.py:smoke,processes", f"--workdir={tmp_path / 'run'}"]
    command += ["--config.actors.count=1"]
    environment, killed = programs.environment(tmp_path / "home"), []
    run = subprocess.Popen(command, cwd=REPO_ROOT, env=environment, start_new_session=True)
    while run.poll() is None and not killed:
        time.sleep(0.02)
        killed = actors_of(run.pid)
    assert killed
    os.kill(killed[0], signal.SIGKILL)
    saved = tmp_path / "run" / "checkpoints"
    while run.poll() is None and not (saved.exists() and any(path.name.isdecimal() for path in saved.iterdir())):
        time.sleep(0.002)
    run.send_signal(signal.SIGKILL)
    assert run.wait() == -signal.SIGKILL and not (tmp_path / "run" / "final.json").exists()
    control_async.run(small("smoke,processes", actors__count=1), tmp_path / "run")
    assert len(json.loads((tmp_path / "run" / "run.json").read_text())["resumed"]) == 1
    assert_same(tmp_path / "run", whole)


def actors_of(parent: int) -> list[int]:
    """The running actors that this process has started."""
    result = []
    for path in pathlib.Path("/proc").iterdir():
        try:
            if path.name.isdecimal() and int((path / "stat").read_text().rpartition(")")[2].split()[1]) == parent:
                if b"control_actors" in (path / "cmdline").read_bytes():
                    result.append(int(path.name))
        except OSError:  # has ended meanwhile
            continue
    return result


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
def test_two_policy_workers_give_the_bits_of_one_process_also_after_a_stop(whole, tmp_path, monkeypatch):
    config = small(actors__policies=2, actors__count=1)
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "StopSignal", StopAfter(3))
        with Policies(config, tmp_path) as first:
            pass
    assert first.said == [False, False] and not (tmp_path / "final.json").exists()
    with Policies(config, tmp_path) as second:
        pass
    assert second.said == [True, True]
    assert_same(tmp_path, whole)
    # What no checkpoint needs is forgotten; what a policy worker needs to come back is not.
    numbers = sorted(int(path.stem.partition("-")[2]) for path in (tmp_path / "link" / "groups").iterdir())
    assert numbers and min(numbers) >= 2 * 2, numbers  # two parts of each segment; a checkpoint every two
    assert len(list((tmp_path / "policy_1").glob("segment_*.arrow"))) == 2


HOST = """
import sys
from experiments.tools.control_kills import Sides
sides, running = Sides.of_json(sys.argv[1]), {}
for line in sys.stdin:
    word, name = line.split(maxsplit=1)
    if word == "kill":
        running[name].kill()
        running.pop(name).wait()
    running[name] = sides.start(name) if word != "wait" else running[name]
    print("done", running[name].wait() if word == "wait" else 0, flush=True)
"""


@pytest.mark.slow
def test_processes_over_the_network_give_the_bits_of_one_after_kills_of_an_actor_and_a_policy_worker(whole, tmp_path):
    """The trainer is this process; the others are forks of one that has started nothing: real kills, one import."""
    sides = control_kills.Sides(tmp_path, tmp_path / "run", small(actors__count=1))
    environment = programs.environment(tmp_path / "home")
    pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    command = [sys.executable, "-c", HOST, sides.to_json()]
    with subprocess.Popen(command, cwd=REPO_ROOT, env=environment, start_new_session=True, **pipes) as host:

        def tell(words):
            print(words, file=host.stdin, flush=True)
            return host.stdout.readline()

        class Killing:
            """The trainer's link, which kills at the third and the fourth segment."""

            def __init__(self, link):
                self._link, self._taken = link, 0

            def __getattr__(self, name):
                return getattr(self._link, name)

            def take(self, *args):
                if (found := self._link.take(*args)) and (name := {3: "actor 0 0", 4: "policy 0"}.get(self._taken + 1)):
                    assert tell(f"kill {name}").split() == ["done", "0"]
                self._taken += bool(found)
                return found

        for name in ("policy 0", "actor 0 0"):
            tell(f"start {name}")
        sides.run_trainer(Killing)
        assert tell("wait policy 0").split() == tell("wait actor 0 0").split() == ["done", "0"]
        host.stdin.close()
    assert_same(tmp_path / "run", whole)


@pytest.mark.slow
def test_the_free_schedule_is_written_down(tmp_path):
    control_async.run(small("free,smoke"), tmp_path)
    rows = [json.loads(line) for line in (tmp_path / "schedule.jsonl").read_text().splitlines()]
    with pytest.raises(ValueError, match="none: it has no schedule.jsonl"):
        control_actors.read_schedule(tmp_path / "none")
    with pytest.raises(ValueError, match=r"another config \(2 fields differ: flow.schedule='counted' here.*; seed=1"):
        control_roles.check_replay(small(seed=1, actors__count=1), tmp_path)
    assert [row["segment"] for row in rows] == [row["step"] for row in rows] == list(range(1, 7))
    # With one segment that waits and one that is sampled, the newest version is at most two behind.
    assert all(row["segment"] - 3 <= v < row["segment"] for row in rows for v in row["versions"])


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_it_learns_the_shuttle_with_old_weights(seed, tmp_path):
    config = configs.get_config("shuttle")
    config.update(seed=seed, network=dict(hidden=(32,)))
    config.log.update(progress=False, tensorboard=False)
    config.train.total_steps = 64 * 256
    config.flow.delay = 24  # one and a half segments behind
    config.eval.every = 0
    control_async.run(config, tmp_path)
    rows = rows_of(tmp_path)
    assert abs(rows[0]["eval/return"]) < 0.5 and rows[-1]["eval/return"] >= 0.9, rows[-1]
    assert rows[-1]["lag/mean"] == 1.5


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
def test_one_process_does_a_free_run_of_several_again(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "StopSignal", StopAfter(3))
        with Policies(small("free,smoke"), tmp_path / "far"):
            pass
    with Policies(small("free,smoke"), tmp_path / "far"):
        pass
    control_async.run(small("free,smoke", actors__count=1), tmp_path / "near", replay=tmp_path / "far")
    assert_same(tmp_path / "far", tmp_path / "near")
    assert (tmp_path / "far" / "schedule.jsonl").read_text() == (tmp_path / "near" / "schedule.jsonl").read_text()


def test_flags_that_do_not_fit_are_refused():
    config = small(actors__policies=2)

    def refused(words, **flags):
        given = dict(role="both", replay=None, policy=0, actor=0, listen="", link="", link_secrets=None) | flags
        with pytest.raises(ValueError, match=words):
            control_roles.check_flags(config, types.SimpleNamespace(**given))

    refused("--replay=runs/x: one process repeats a run", replay="runs/x", role="trainer")
    refused("--policy=1 is for --role=policy, and this is --role=actor", policy=1, role="actor")
    refused("--policy=2: actors.policies=2, so it is one of 0 to 1", policy=2, role="policy")
    refused("--actor=2: actors.count=2, so it is one of 0 to 1", actor=2, role="actor")
    refused("--listen=grpc://127.0.0.1:1 is for --role=policy", listen="grpc://127.0.0.1:1")
    refused("--role=actor --link=: an actor calls its policy worker", role="actor")
    with pytest.raises(ValueError, match="actors.policies=2 with flow.schedule='free': each would take"):
        control_roles.check_roles(small("free,smoke", actors__policies=2))
    with pytest.raises(ValueError, match="actors.policies=3 must be at most actors.ring=2"):
        control_actors.layout_of(small(actors__policies=3))


def test_a_policy_worker_with_another_config_or_without_its_past_is_refused(tmp_path):
    config, link = small(), make_link("trainer", tmp_path, "")
    segment = Segment(1, Transitions(*(np.zeros((8, 8), np.float32) for _ in range(7))), np.zeros(8), [[0, []]] * 8)
    link.put([control_roles.pack(small(seed=1, actors__count=1), segment, 0)])
    trainer = control_roles.LinkedSegments(config, link, tmp_path / "checkpoints")
    trainer.begin(0, {0: np.zeros(3)}, [])
    with pytest.raises(ValueError, match=r"policy_0 has another config \(1 fields differ: seed=0 here, 1 there\)"):
        trainer.take()
    link.publish(1, {"params": np.zeros(3)})
    with pytest.raises(ValueError, match="the trainer is at version 1, and .*policy_0 has no segment"):
        control_async.run_policy(config, tmp_path, make_link("sampler", tmp_path, ""))
    made = control_roles.pack(config, segment._replace(number=4), 0)
    (tmp_path / "policy_0" / "segment_00000004.arrow").write_bytes(payload.to_bytes(made))
    with pytest.raises(ValueError, match="has made 4 segments, and the trainer is at version 1 without them"):
        control_async.run_policy(config, tmp_path, make_link("sampler", tmp_path, ""))
    trainer.close()


def test_parts_of_two_policy_workers_make_one_segment_in_the_order_of_the_environments(tmp_path):
    config, link = small(actors__policies=2, actors__count=1, actors__ring=4), make_link("trainer", tmp_path, "")
    whole = np.arange(8 * 8, dtype=np.float32).reshape(8, 8)
    after = [[env, [env] * env] for env in range(8)]
    for policy in (1, 0):  # groups 1 and 3 of two environments, then 0 and 2
        own = [env for env in range(8) if (env // 2) % 2 == policy]
        part = Segment(1, Transitions(*(whole[own] + i for i in range(7))), np.full(8, 0), after)
        link.put([control_roles.pack(config, part, policy)])
    trainer = control_roles.LinkedSegments(config, link, tmp_path / "checkpoints")
    trainer.begin(0, {0: np.zeros(3)}, [])
    found = trainer.take()
    assert found.number == 1 and found.versions.tolist() == [0] * 8 and found.after == after
    assert all((leaf == whole + i).all() for i, leaf in enumerate(found.rows))
    trainer.publish(1, np.ones(3))
    assert make_link("sampler", tmp_path, "").weights(1)["params"].tolist() == [1.0] * 3
    trainer.close()


def test_a_free_policy_worker_never_goes_back_and_waits_for_the_trainer(tmp_path):
    class Told:
        """A link whose newest weights a test has written down; None while they are not new."""

        found, put_at = [(3, 3.0), None, (1, 1.0), (2, 2.0), (4, 4.0), (5, 5.0), (6, 6.0)], None

        def newest(self, after, timeout_s=0.0):
            version = self.found.pop(0)
            return version and (version[0], {"params": version[1]})

        def put(self, groups, timeout_s):
            self.put_at = len(self.found)
            return True

        def hear(self, name):
            return None

        def lost_s(self):
            return 0.0

    link, config = Told(), small("free,smoke")
    worker = control_roles.PolicyWorker(config, link, tmp_path, None, index=0, total=9, server=None)
    assert [worker._weights(None)[0] for _ in range(5)] == [3, 3, 3, 3, 4]
    rows = Transitions(*(np.zeros((8, 8), np.float32) for _ in range(7)))
    worker.put(Segment(8, rows, np.full(8, 4), [[0, []]] * 8))  # flow.ahead=1: not before version 6
    assert link.put_at == 0 and worker._held == (6, 6.0)


def test_what_actors_cannot_do_is_refused():
    with pytest.raises(ValueError, match="network.kind='gru': actors keep no memory, set it to 'mlp'"):
        control_learner.make_learner(small(network__kind="gru"))
    with pytest.raises(ValueError, match="do not divide into 3 minibatches: set train.minibatches"):
        control_learner.make_learner(small(train__minibatches=3))
    with pytest.raises(ValueError, match="this config is for python -m experiments.control.ppo"):
        control_async.run(small(program="control.ppo"), pathlib.Path("unused"))
    with pytest.raises(ValueError, match="choose at most one environment, not cartpole, shuttle"):
        configs.get_config("cartpole,shuttle")


@pytest.mark.parametrize(("keep", "since"), [(2, 5000), (None, 100)])
def test_a_checkpoint_that_is_kept_for_good_holds_no_segments(tmp_path, keep, since):
    """checkpoint.keep_every and keep_best: the oldest would stay for ever, and every segment since."""
    for step in (100, 4900, 5000, 5100):
        (tmp_path / "checkpoints" / str(step)).mkdir(parents=True)
    config, settled = small(), []
    config.checkpoint.keep = keep
    trainer = control_roles.LinkedSegments(config, make_link("trainer", tmp_path, ""), tmp_path / "checkpoints")
    trainer._link = types.SimpleNamespace(settle=settled.append)
    trainer.settle()
    assert settled == [since]
