"""SPO's D: completions of the last visit are scored again, in the rows of the same prompts."""

import jax
import numpy as np
import pytest

from experiments.parts import policy
from experiments.parts.encoding import encode_prompts
from experiments.parts.revisits import Revisits, newest_of, with_completions
from experiments.parts.setup import make_setup
from tests.experiments import small
from tests.experiments.shared_programs import share_programs, sharing  # noqa: F401  fixtures
from tests.experiments.test_prompts import judged


def test_a_rollout_with_its_own_completions_is_itself():
    rollout = judged([1.0, 0.0, 1.0, 0.0], {}).rollout
    tokens = np.random.default_rng(0).integers(1, 9, rollout.batch.tokens.shape).astype(np.int32)
    mask = rollout.completion_mask
    segments = np.concatenate([[[0, 1], [1, 1], [0, 1], [1, 1]], mask], axis=1).astype(np.int32)
    tokens[segments == 0] = 0
    positions = np.array([[max(sum(row[: t + 1]) - 1, 0) * row[t] for t in range(5)] for row in segments])
    rollout = rollout._replace(batch=rollout.batch._replace(tokens=tokens, segment_ids=segments, positions=positions))
    own = [tokens[row, -3:][mask[row]] for row in range(4)]
    again = with_completions(rollout, own, 0)
    jax.tree.map(np.testing.assert_array_equal, again, rollout)
    other = with_completions(rollout, [[5, 6, 7], [], [8], [1]], 0)
    np.testing.assert_array_equal(other.batch.tokens[:, :2], tokens[:, :2])
    np.testing.assert_array_equal(other.batch.tokens[:2, 2:], [[5, 6, 7], [0, 0, 0]])
    np.testing.assert_array_equal(other.batch.positions[:2], [[0, 0, 1, 2, 3], [0, 1, 0, 0, 0]])
    np.testing.assert_array_equal(other.completion_mask.sum(axis=1), [3, 0, 1, 1])


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["padded", "packed"])
def test_d_is_the_mean_change_of_log_probs(tmp_path, mode):
    """0 for the policy that sampled; for another one what scoring the old rows gives; 0 at a first visit."""
    config = small.config(tmp_path, sample__group_size=1, sample__prompts_per_step=8, packing__mode=mode)
    setup = make_setup(config)
    params = setup.init_params()
    moved = jax.tree.map(lambda x: 1.1 * x, params)
    programs, _ = policy.build(setup, jax.tree.map(lambda x: x.copy(), params))
    source = setup.task.data_source("train")
    prompts = encode_prompts(setup, [source[i] for i in range(8)])
    first, second = (jax.device_get(programs.generate(params, *prompts, jax.random.key(key))) for key in (0, 1))
    kept = newest_of(judged([0.0] * 8, {})._replace(rollout=first), 1)
    assert [len(entry["tokens"]) for entry in kept] == first.completion_mask.sum(axis=1).tolist()
    measure = Revisits(setup, programs.on_host)
    np.testing.assert_allclose(measure(params, second, kept), 0.0, atol=1e-5)
    found = measure(moved, second, [None, *kept[1:]])
    packer = measure._packer
    scores = programs.on_host(moved, packer.to_score(first)).log_probs
    mask = first.completion_mask
    change = np.where(mask, np.abs(scores - first.sampled_log_probs), 0.0).sum(axis=1) / mask.sum(axis=1)
    assert found[0] == 0 and found[1:].min() > 1e-3
    np.testing.assert_allclose(found[1:], change[1:], rtol=1e-3)
    np.testing.assert_array_equal(measure(moved, second, [None] * 8), np.zeros(8))
