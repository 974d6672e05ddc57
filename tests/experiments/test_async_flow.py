"""Flow without a trainer: rows in flight under new weights, orders of batches, a snapshot, what is thrown away."""

import concurrent.futures
import threading
import types

import jax
import numpy as np
import pytest

from configs import grpo_async as async_config
from experiments.parts import async_flow, async_groups, policy
from experiments.parts.setup import make_setup
from rl_jax.experience.admission import Counters
from rl_jax.rollout.lm.requests import as_rollout
from rl_jax.runs.logging import read_jsonl
from rl_jax.training.scoring import make_score
from tests.experiments import small
from tests.experiments.shared_programs import share_programs, sharing  # noqa: F401  fixtures

ENGINE = dict(name="continuous", slots=4, url="", model="", timeout_s=1.0, sync=dict(fn=""))
LENGTH = 12


@pytest.fixture(scope="module")
def setup(tmp_path_factory):
    """3 groups of 2 rows a batch, rows of 1 to 12 tokens, and params of 8 versions that differ much."""
    fields = dict(
        rollout__completion_length=LENGTH, sample__prompts_per_step=3, sample__group_size=2, rollout__engine=ENGINE
    )
    config = small.config(tmp_path_factory.mktemp("data"), **fields)
    with config.unlocked():
        config = async_config.of(config.copy_and_resolve_references(), decode_steps=2).lock()
    return make_setup(config)


@pytest.fixture(scope="module")
def weights(setup):
    """Params of version v: those of another seed, nearer to each other."""
    params = setup.init_params()
    noise = jax.tree.map(lambda x: jax.random.normal(jax.random.key(x.size), x.shape), params)
    return [jax.tree.map(lambda x, n, v=v: x + 0.1 * v * n, params, noise) for v in range(8)]


def flow_of(setup, tmp_path, **changes):
    """A Flow of this config.flow."""
    config = setup.config.copy_and_resolve_references()
    with config.unlocked():
        config.flow.update(changes)
    setup = setup._replace(config=config.lock())
    return async_flow.Flow(setup, policy.own_prompts(setup)[1], tmp_path)


def trained(flow, weights, steps, first=0):
    """The groups of some steps, whose trainer does nothing."""
    flow.publish(first, weights[first])
    batches = []
    for step in range(first + 1, first + steps + 1):
        batches.append(flow.take())
        flow.beside(lambda: None)
        flow.publish(step, weights[step])
    return batches


def rows_of(batches):
    return [row for groups in batches for group in groups for row in group.rows]


def gaps(setup, weights, rows):
    """The largest |log-prob as sampled - score by the version that drew the token|, and versions per row, at most."""
    score = jax.jit(make_score(setup.model, completion_length=LENGTH))
    prompts = [np.asarray(row.request.prompt) for row in rows]
    tokens, mask = np.zeros((2, len(rows), 8), np.int32)
    for i, prompt in enumerate(prompts):
        tokens[i, -len(prompt) :], mask[i, -len(prompt) :] = prompt, 1
    rollout = as_rollout(rows, tokens, mask > 0, completion_length=LENGTH, pad_id=0, with_versions=True)
    scores = np.stack([score(params, rollout.batch).log_probs for params in weights])
    own = np.take_along_axis(scores, rollout.versions[None], axis=0)[0]
    gap = np.where(rollout.completion_mask, np.abs(own - rollout.sampled_log_probs), 0.0)
    return gap.max(), max(len(set(row.versions.tolist())) for row in rows)


class Timed(async_flow.Flow):
    """A flow with a clock of its own and no engine: two decode calls of 5 s while it trains, then 3 s to drain."""

    def __init__(self, workdir, *, free):
        self._free, self._recorded, self._event, self._path = free, None, {}, workdir / async_flow.LOG
        self._settings = types.SimpleNamespace(train_ticks=2, in_flight="drain")
        self._groups, self.counters, self.ticks = types.SimpleNamespace(idle=True), Counters(), 0
        self._pool = concurrent.futures.ThreadPoolExecutor(1) if free else None
        self.now, self._begun, self._sampled = 0.0, threading.Event(), threading.Event()
        self._train_s, self._logs = 0.0, False

    def train(self, seconds):
        """Trains for `seconds`; beside the sampling, if the schedule is free, which begins after it and ends before."""
        self._begun.set()
        if self._free:
            self._sampled.wait(60)
        self.now += seconds
        return "trained"

    def _call(self, *, idle_ok=False):
        if self._free:
            self._begun.wait(60)
        if self.ticks == 2:
            return False
        self.ticks, self.now = self.ticks + 1, self.now + 5.0
        if self.ticks == 2:
            self._groups.idle = False
            self._sampled.set()
        return True

    def _step(self):
        self._groups.idle, self.now = True, self.now + 3.0


@pytest.mark.parametrize(("free", "train_s", "beside_s"), [(False, 2.0, 13.0), (True, 12.0, 3.0)])
def test_seconds_in_updates_are_not_those_of_the_sampling_beside_them(tmp_path, monkeypatch, free, train_s, beside_s):
    """The free schedule trains while it samples, the counted one after it."""
    flow = Timed(tmp_path, free=free)
    monkeypatch.setattr(async_flow.time, "perf_counter", lambda: flow.now)
    assert flow.beside(flow.train, 2.0) == "trained"
    monkeypatch.setattr(async_flow.logged, "timings", lambda *_: {"train_s": flow.now, "step_s": flow.now})
    learn = types.SimpleNamespace(programs=types.SimpleNamespace(_replace=lambda **_: None))
    assert flow.timings(None, None, learn) == {"train_s": train_s, "beside_s": beside_s, "step_s": 15.0}
    if flow._pool is not None:
        flow._pool.shutdown()


def test_a_step_is_in_the_schedule_once(tmp_path):
    """An attempt that died before its first checkpoint has logged steps that the next one, from nothing, logs again."""
    path = tmp_path / async_flow.LOG
    path.write_text('{"step": 1, "beside": 9}\n{"step": 2, "beside": 9}\n{"step": 3, "besi')
    flow = Timed(tmp_path, free=False)
    for step in (1, 2):
        flow.counters, flow.ticks, flow._event = Counters(version=step - 1), 0, {"step": step}
        flow.beside(flow.train, 0.0)
    assert [(row["step"], row["beside"]) for row in read_jsonl(path)] == [(1, 2), (2, 2)]


@pytest.mark.slow
@pytest.mark.parametrize("in_flight", ["interrupt", "drain", "keep"])
def test_rows_in_flight(setup, weights, tmp_path, in_flight):
    """Interrupted rows are samples of their versions, token by token; caches of old weights are not theirs."""
    flow = flow_of(setup, tmp_path, in_flight=in_flight)
    rows = rows_of(trained(flow, weights, 5))
    gap, versions = gaps(setup, weights, rows)
    assert len(rows) == 30
    if in_flight == "keep":
        assert gap > 0.01 and versions > 1
    else:
        assert gap < 1e-5 and (versions > 1) == (in_flight == "interrupt")


@pytest.mark.slow
def test_a_delay_line_is_exactly_so_old(setup, weights, tmp_path):
    config = setup.config.copy_and_resolve_references()
    with config.unlocked():
        async_config.delayed(config, 2)
    flow = flow_of(setup, tmp_path, **config.flow.to_dict())
    for version, groups in enumerate(trained(flow, weights, 5)):
        assert {int(v) for row in rows_of([groups]) for v in row.versions} == {max(version - 2, 0)}, version


@pytest.mark.slow
def test_a_snapshot_has_every_row(setup, weights, tmp_path):
    """After every step: a new Flow with the state takes the same groups to the bit, and lets the same ones in."""
    flow = flow_of(setup, tmp_path)
    first, state = trained(flow, weights, 2), flow.get_state()
    other = flow_of(setup, tmp_path / "..")
    other.set_state(state)
    assert other.counters == flow.counters and other.ticks == flow.ticks
    kinds = {row.status for row in async_groups.of_text(state["groups"]["rows"])}
    assert "running" in kinds and len(kinds) > 1, "finished and unfinished rows"
    ours, theirs = trained(flow, weights, 2, first=2), trained(other, weights, 2, first=2)
    for one, like in zip(rows_of(ours), rows_of(theirs), strict=True):
        for field in ("tokens", "sampled_log_probs", "raw_log_probs", "versions"):
            np.testing.assert_array_equal(getattr(one, field), getattr(like, field))
        np.testing.assert_array_equal(one.request.prompt, like.request.prompt)
    taken = [group.number for groups in (*first, *ours) for group in groups]
    assert len(taken) == len(set(taken)) == 12


@pytest.mark.slow
def test_drop_throws_away_and_counts(setup, weights, tmp_path):
    flow = flow_of(setup, tmp_path, order="drop", eta=1, train_ticks=0)
    whole = flow._groups._request
    flow._groups._request = lambda number, sample, prompt, **fields: whole(number, sample, prompt, **fields)._replace(
        max_tokens=LENGTH if number % 5 == 0 else 2
    )
    compose, told = flow._compose, []
    flow._compose = lambda: [told.append(list(flow.dropped)), compose()]
    for version, groups in enumerate(trained(flow, weights, 6)):
        assert max(version - int(row.versions.min()) for row in rows_of([groups])) <= 1
    assert flow.counters.dropped == sum(map(len, told)) > 0, "a batch can tell of all that was dropped before it"
    found = flow.metrics()
    assert found["flow/dropped"] == flow.counters.dropped and found["flow/dropped_length"] > 0
    assert flow.metrics()["flow/dropped_length"] == 0.0
    inside = {group.number for group in flow._groups.inside(6)}
    assert len(inside) == flow.counters.admitted - flow.counters.taken - flow.counters.dropped
    assert flow.counters == Counters(6, flow.counters.admitted, 18, flow.counters.dropped)


def test_a_replay_that_goes_another_way_is_named(setup, tmp_path):
    (tmp_path / async_flow.LOG).write_text('{"step": 1, "start": 3, "groups": [0, 1, 2], "beside": 4}\n')
    flow = flow_of(setup, tmp_path)
    flow._recorded = async_flow.read_schedule(tmp_path)
    flow._event = {"step": 1, "start": 3, "groups": [0, 1, 2]}
    assert flow._calls_beside() == 4
    flow._event["groups"] = [0, 1, 4]
    with pytest.raises(RuntimeError, match=r"step 1 has groups=\[0, 1, 4\], the recorded run \[0, 1, 2\]"):
        flow._calls_beside()
    flow._event["step"] = 2
    with pytest.raises(RuntimeError, match="the recorded run has no step 2"):
        flow._calls_beside()
    with pytest.raises(ValueError, match="it has no schedule.jsonl"):
        async_flow.read_schedule(tmp_path / "nowhere")
