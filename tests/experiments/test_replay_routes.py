"""model.replay_routes: a run carries its sampler's routes to scoring and training, and refuses what would lose them."""

import json
from unittest import mock

import numpy as np
import pytest

from experiments import grpo
from experiments.parts import policy_steps
from experiments.parts.encoding import pad_prompts
from experiments.parts.setup import replays_routes
from rl_jax.core.types import TokenBatch
from tests.experiments import small
from tests.experiments.shared_programs import share_programs, sharing  # noqa: F401  fixtures
from tests.experiments.small import kept_signals, no_evaluations, reward, sevens_and_even  # noqa: F401  a fixture

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
    "field, value", [("rollout__engine__name", "continuous"), ("packing__mode", "packed"), ("rollout__window", 2)]
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
    with pytest.raises(ValueError, match="only experiments.grpo replays routes, experiments.ppo does not"):
        replays_routes(config)


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
