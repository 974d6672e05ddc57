"""model.replay_routes: a run carries its sampler's routes to scoring and training, and refuses what would lose them."""

import json
import types
from unittest import mock

import jax
import numpy as np
import pytest

from configs import grpo_async as async_config
from experiments import grpo, grpo_async
from experiments.parts import async_collect, async_columns, async_units, policy_steps
from experiments.parts.async_groups import GroupRows, Groups, completion_of, of_text, to_text, trajectory_of
from experiments.parts.async_roles import pack, shared, unpack
from experiments.parts.async_rows import TASKS
from experiments.parts.async_shared import differences
from experiments.parts.encoding import pad_prompts
from experiments.parts.setup import replays_routes
from rl_jax.core.types import TokenBatch
from rl_jax.flow.columns import Row, TransferQueue
from rl_jax.flow.rows import from_table, to_table
from rl_jax.rollout.lm.requests import Completion, Request, as_rollout
from tests.experiments import small
from tests.experiments.shared_programs import share_programs, sharing  # noqa: F401  fixtures
from tests.experiments.small import kept_signals, no_evaluations, reward, sevens_and_even  # noqa: F401  a fixture

SHAPE = dict(completion_length=4, pad_id=0)
EXPERTS = dict(model__num_experts=4, model__experts_per_token=2)


def config_of(tmp_path, **fields):
    fields = dict(train__steps=1, checkpoint__every=100, reward__function=reward(sevens_and_even)) | EXPERTS | fields
    return small.config(tmp_path, **fields)


@pytest.mark.slow
@pytest.mark.usefixtures("kept_signals", "no_evaluations")
def test_a_run_replays_and_on_policy_nothing_changes(tmp_path):
    """The same metrics as without, to the last digit: sampler and trainer are one program.

    The routers' loads are those of its rows.
    """
    seen, rows, scored = [], [], policy_steps.score

    def score(config, programs, batch, *rest, **keywords):
        rows.append(batch)
        seen.append(None if batch.routes is None else np.asarray(batch.routes))
        return scored(config, programs, batch, *rest, **keywords)

    for replay in (True, False):
        with mock.patch.object(grpo, "score", score):  # `monkeypatch` would end the sharing of programs
            grpo.run(config_of(tmp_path, model__replay_routes=replay), tmp_path / str(replay))
    assert seen[0] is not None and seen[0].shape[2:] == (1, 2) and seen[1] is None
    one, other = ((tmp_path / name / "metrics.jsonl").read_bytes() for name in ("True", "False"))
    assert one == other
    routes, real = seen[0][:, :, 0], np.asarray(rows[0].segment_ids) > 0
    counts = np.bincount(routes[real & (routes[..., 0] >= 0)].reshape(-1), minlength=4)
    unknown, even = (real & (routes[..., 0] < 0)).sum(), 2 * real.sum() / 4  # a last token's experts are not recorded
    found = json.loads(one.splitlines()[-1])
    for name, count in (("router/max_load", counts.max()), ("router/min_load", counts.min())):
        assert count / even - 1e-5 <= found[name] <= (count + unknown) / even + 1e-5
    assert found["router/min_load"] < 1 < found["router/max_load"]


@pytest.mark.parametrize(
    "field, value", [("rollout__engine__name", "openai"), ("packing__mode", "packed"), ("rollout__window", 2)]
)
def test_what_would_lose_the_routes_is_refused(tmp_path, field, value):
    config = config_of(tmp_path, model__replay_routes=True, **{field: value})
    with pytest.raises(ValueError, match=f"needs {field.replace('__', '.')}=.*not {value!r}: routes would be lost"):
        replays_routes(config)
    config.model.replay_routes = False
    assert not replays_routes(config)


def test_programs_and_foreign_rows_that_have_no_routes_are_refused(tmp_path):
    config = config_of(tmp_path, model__replay_routes=True)
    assert replays_routes(config)
    with config.unlocked():
        config.foreign = {"own": {"fn": "demonstrations"}}
    with pytest.raises(ValueError, match=r"foreign={}, not \['own'\]: they have no routes"):
        replays_routes(config)
    config.program = "ppo"
    with pytest.raises(ValueError, match="grpo and experiments.grpo_async replay routes, experiments.ppo does not"):
        replays_routes(config)


def flowing_of(config, **flow):
    """The same run as one of experiments.grpo_async."""
    return async_config.of(config.copy_and_resolve_references().unlock(), **flow).lock()


@pytest.mark.slow
@pytest.mark.usefixtures("kept_signals", "no_evaluations")
def test_asynchronous_rows_bring_their_routes(tmp_path, monkeypatch):
    """Of all tokens that were read, as in experiments.grpo with the continuous engine; eta 0 is its run to the byte."""
    monkeypatch.setattr(grpo_async, "make_evaluate", lambda *_: lambda params: ({}, []))
    engine = dict(name="continuous", slots=6, url="", model="", timeout_s=1.0, sync=dict(fn=""))
    fields = dict(rollout__engine=engine, train__steps=2, model__replay_routes=True)
    config, found = config_of(tmp_path, **fields), {}
    flowing = flowing_of(config, eta=0, age=0, decode_steps=0)
    for program, module, given in ((grpo, grpo, config), (grpo_async, async_collect, flowing)):
        seen = found[program] = []

        def score(config, programs, batch, *rest, seen=seen, **keywords):
            seen.append(jax.tree.map(np.asarray, batch))
            return policy_steps.score(config, programs, batch, *rest, **keywords)

        with mock.patch.object(module, "score", score):
            program.run(given, tmp_path / program.__name__)
    for one, other in zip(found[grpo], found[grpo_async], strict=True):
        jax.tree.map(np.testing.assert_array_equal, one, other)
        assert one.routes.shape[2:] == (1, 2)
        ends = (one.segment_ids > 0) & (np.cumsum(one.segment_ids[:, ::-1] > 0, axis=1)[:, ::-1] == 1)
        np.testing.assert_array_equal((one.routes >= 0).all(axis=(2, 3)), (one.segment_ids > 0) & ~ends)
    one, other = ((tmp_path / p.__name__ / "metrics.jsonl").read_bytes() for p in (grpo, grpo_async))
    assert one == other


def row_with(routes):
    """A row that has ended: 2 tokens of a prompt, 3 that were drawn."""
    drawn = np.float32([-0.5, -0.25, -1.0])
    return Completion(
        Request(7, np.int32([5, 6]), 3), np.int32([7, 8, 1]), drawn, drawn, "eos", np.int32([1, 1, 2]), routes
    )


def test_routes_travel_with_their_row():
    """Between processes by group, in storage units by row, to the tasks by column, and over a resume."""
    routes = np.arange(5 * 3 * 2, dtype=np.int16).reshape(5, 3, 2)
    group = GroupRows(3, {"id": "g"}, 2)
    group.rows = [row_with(routes), row_with(routes + 1)]
    columns = from_table(to_table([async_units.columns_of(group, row) for row in group.rows]))
    saved = to_text([trajectory_of(group, sample, row) for sample, row in enumerate(group.rows)])
    for rows in (
        unpack(pack(group, 0, {}))[0].rows,
        [completion_of(row) for row in of_text(saved)],
        [async_units.completion_of(7, Row(number, values)) for number, values in enumerate(columns)],
        [async_columns.completion(**{name: values[name] for name in async_columns.READ}) for values in columns],
    ):
        assert [row.routes.dtype for row in rows] == [np.int16] * 2
        np.testing.assert_array_equal([row.routes for row in rows], [routes, routes + 1])
        rollout = as_rollout(rows, np.int32([[0, 5, 6]]), np.array([[False, True, True]]), **SHAPE)
        np.testing.assert_array_equal(rollout.batch.routes[:, 1:6], [routes, routes + 1])
        assert (rollout.batch.routes[:, [0, 6]] == -1).all()
    with pytest.raises(ValueError, match="row 0 has the experts of 4 tokens, and 5 tokens"):
        as_rollout([row_with(routes[1:])], np.int32([[5, 6]]), np.ones((1, 2), bool), **SHAPE)


def test_sides_and_states_that_would_lose_the_routes_are_refused(tmp_path):
    """A sampler that does not record, rows saved without (--fork), and scoring before a row has its experts."""
    replaying, plain = (flowing_of(config_of(tmp_path, model__replay_routes=replay)) for replay in (True, False))
    assert differences(shared(replaying), shared(plain)) == "1 fields differ: model.replay_routes=True here, None there"
    group, routes = GroupRows(3, {}, 1), np.zeros((5, 1, 2), np.int16)
    for config, kept, lost in ((replaying, routes, None), (plain, None, routes)):
        groups = object.__new__(Groups)
        groups._setup, groups._size = types.SimpleNamespace(config=config), 1
        groups._check_sizes([trajectory_of(group, 0, row_with(kept))])
        with pytest.raises(ValueError, match=f"recorded experts, and model.replay_routes={config is replaying}"):
            groups._check_sizes([trajectory_of(group, 0, row_with(lost))])
        rewards = types.SimpleNamespace(failures=[], sees_groups=False)
        flow = types.SimpleNamespace(rule=types.SimpleNamespace(bound=0), queue=TransferQueue(TASKS))
        side = async_columns.ColumnCollector(groups._setup, rewards, None, flow)
        flow.queue.put("sampler", {3: dict(record="{}", response=np.zeros(2, np.int32), ended="eos")})
        flow.queue.put("admission", {3: dict(version=0)})
        assert flow.queue.ready("judge") == flow.queue.ready("reference", side._reads["reference"]) == [3]
        assert flow.queue.ready("policy", side._reads["policy"]) == ([] if config is replaying else [3])


@pytest.mark.parametrize("wider", [0, 2])
def test_prompts_that_are_padded_keep_their_routes_and_nuclei(wider):
    """As when the groups of several batches are joined."""
    tokens = np.arange(1, 9, dtype=np.int32).reshape(2, 4)
    routes = np.arange(2 * 4 * 3 * 2, dtype=np.int16).reshape(2, 4, 3, 2)
    allowed = np.ones((2, 3, 5), np.uint8)
    found = pad_prompts(TokenBatch(tokens, tokens, tokens, allowed=allowed, routes=routes), 4 + wider, 9)
    np.testing.assert_array_equal(found.routes[:, wider:], routes)
    assert (found.routes[:, :wider] == -1).all() and found.routes.dtype == np.int16
    np.testing.assert_array_equal(found.allowed, allowed)
    np.testing.assert_array_equal(found.tokens, np.pad(tokens, [(0, 0), (wider, 0)], constant_values=9))
    assert found.segment_ids.shape == found.positions.shape == (2, 4 + wider)
