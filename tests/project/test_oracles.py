"""Pins of the published implementations themselves: numbers small enough to check by hand.

The losses are compared with tests/oracles on random batches; a release that computes something else must be noticed
here first, and under its own name.
"""

import math
import sys

import jax
import numpy as np
import pytest

from tests.oracles import trl, verl
from tests.oracles.loading import Package, StandIn

# One row of four tokens: clipped above, clipped below, not clipped, and a negative advantage whose ratio is huge.
RATIO = np.array([[1.5, 0.5, 1.1, 5.0]])
OLD_LOG_PROBS = np.log([[0.5, 0.6, 0.3, 0.1]])
LOG_PROBS = OLD_LOG_PROBS + np.log(RATIO)
ADVANTAGES = np.array([[1.0, -1.0, 2.0, -1.0]])
MASK = np.ones((1, 4), bool)

GROUP = np.array([1.0, 0.0, 0.0, 0.0])
TOKEN_EACH = np.ones((4, 1), bool)


@pytest.mark.parametrize(
    ("name", "settings", "value", "gradient"),
    [
        ("vanilla", {}, [-1.2, 0.8, -2.2, 3.0], [0.0, 0.0, -2.2, 0.0]),
        ("vanilla", {"clip_ratio_c": 9.0}, [-1.2, 0.8, -2.2, 5.0], [0.0, 0.0, -2.2, 5.0]),
        ("vanilla", {"clip_ratio_high": 0.05}, [-1.05, 0.8, -2.1, 3.0], [0.0] * 4),
        ("vanilla", {"clip_ratio": 0.05}, [-1.2, 0.8, -2.2, 3.0], [0.0, 0.0, -2.2, 0.0]),
        ("cispo", {}, None, [-1.2, 0.8, -2.2, 1.2]),
        ("dppo_tv", {}, None, [0.0, 0.0, -2.2, 3.0]),
        ("gpg", {}, -ADVANTAGES * LOG_PROBS, -ADVANTAGES),
        ("reinforce", {"rollout_is_weights": np.full((1, 4), 0.5)}, None, -0.5 * ADVANTAGES),
        ("dro", {"dro_beta": 0.1}, None, -ADVANTAGES + 0.1 * np.log(RATIO)),
        # what PPO has clipped is no candidate for Clip-Cov; it takes the other two out
        ("clip_cov", {"clip_cov_lb": -9.0, "clip_cov_ratio": 1.0}, [-1.2, 0.8, 0.0, 0.0], [0.0] * 4),
        ("kl_cov", {"kl_cov_ratio": 1.0, "ppo_kl_coef": 0.5}, None, -ADVANTAGES * RATIO + [[0.5, -0.5, 0.5, 0.5]]),
    ],
)
def test_verl_policy_losses(name, settings, value, gradient):
    found = verl.policy_loss(name, LOG_PROBS, OLD_LOG_PROBS, ADVANTAGES, MASK, **settings)
    if value is not None:
        np.testing.assert_allclose(found[0], np.mean(value), rtol=1e-12)
    np.testing.assert_allclose(found[1] * 4, np.reshape(gradient, (1, 4)), rtol=1e-12, atol=1e-15)


def test_verl_sequence_ratios():
    arrays = LOG_PROBS, OLD_LOG_PROBS, np.array([-1.0]), MASK
    ratio = np.prod(RATIO) ** 0.25  # 1.43, and a negative advantage: not clipped
    np.testing.assert_allclose(verl.policy_loss("gspo", *arrays)[0], ratio, rtol=1e-12)
    np.testing.assert_allclose(verl.policy_loss("gspo", *arrays)[1], np.full((1, 4), ratio / 4), rtol=1e-12)
    value, gradient = verl.policy_loss("geo_mean", *arrays, clip_ratio_low=0.4, clip_ratio_high=0.4)
    bounded = math.exp((math.log(1.5) - 0.4 + math.log(1.1) + math.log(5.0)) / 4)  # only the 0.5 is too low
    np.testing.assert_allclose(value, bounded, rtol=1e-7)
    np.testing.assert_allclose(gradient, bounded / 4 * np.array([[1.0, 0.0, 1.0, 1.0]]), rtol=1e-7)


@pytest.mark.parametrize(
    ("name", "settings", "expected"),
    [
        ("grpo", {}, [1.5, -0.5, -0.5, -0.5]),
        ("grpo", {"norm_adv_by_std_in_grpo": False}, [0.75, -0.25, -0.25, -0.25]),
        ("grpo_vectorized", {}, [1.5, -0.5, -0.5, -0.5]),
        ("grpo_passk", {}, [2.0, 0.0, 0.0, 0.0]),
        ("rloo", {}, [1.0, -1 / 3, -1 / 3, -1 / 3]),
        ("rloo_vectorized", {}, [1.0, -1 / 3, -1 / 3, -1 / 3]),
        ("opo", {}, [0.75, -0.25, -0.25, -0.25]),
        ("gpg", {}, [3.0, -1.0, -1.0, -1.0]),
        ("reinforce_plus_plus", {}, [1.5, -0.5, -0.5, -0.5]),
        ("reinforce_plus_plus_baseline", {}, [1.5, -0.5, -0.5, -0.5]),
        ("remax", {"reward_baselines": np.array([0.5, 0.0, 0.0, 1.0])}, [0.5, 0.0, 0.0, -1.0]),
    ],
)
def test_verl_advantages(name, settings, expected):
    advantages, _ = verl.advantage(name, GROUP, TOKEN_EACH, group_size=4, **settings)
    np.testing.assert_allclose(advantages[:, 0], expected, rtol=1e-5, atol=1e-12)


def test_verl_advantages_of_two_groups_and_of_values():
    mask = np.array([[1, 1, 0], [1, 1, 1], [1, 0, 0], [1, 1, 0]], bool)
    advantages, _ = verl.advantage("rloo", GROUP, mask, group_size=2)
    np.testing.assert_allclose(advantages, [[1, 1, 0], [-1, -1, -1], [0, 0, 0], [0, 0, 0]], atol=1e-12)
    _, returns = verl.advantage("reinforce_plus_plus", GROUP, mask, gamma=0.5)
    np.testing.assert_allclose(returns, [[0.5, 1, 0], [0, 0, 0], [0, 0, 0], [0, 0, 0]], atol=1e-12)
    values = np.full((4, 3), 0.25)
    _, returns = verl.advantage("gae", GROUP, mask, values=values, gamma=1.0, lam=0.5)
    np.testing.assert_allclose(returns[mask], [0.625, 1.0, 0.1875, 0.125, 0.0, 0.0, 0.125, 0.0], atol=1e-12)
    components = np.array([[1.0, 3.0], [0.0, 1.0], [0.0, 2.0], [0.0, 2.0]])
    advantages, _ = verl.advantage("gdpo", None, TOKEN_EACH, group_size=2, components=components)
    np.testing.assert_allclose(advantages[:, 0], np.array([1, -1, 0, 0]) * math.sqrt(1.5), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("kind", "value", "gradient"),
    [
        ("k1", [1.0, -1.0], [1.0, 1.0]),  # its mean gradient on-policy is that of log-probs: 0
        ("abs", [1.0, 1.0], [1.0, -1.0]),
        ("k2", [0.5, 0.5], [1.0, -1.0]),
        ("k3", [math.exp(-1), math.e - 2], [1 - math.exp(-1), 1 - math.e]),
        ("k1+", [1.0, -1.0], [1.0, -1.0]),
        ("k3+", [math.exp(-1), math.e - 2], [1.0, -1.0]),
    ],
)
def test_verl_kl_penalties(kind, value, gradient):
    found = verl.kl_penalty([[-1.0, -2.0]], [[-2.0, -1.0]], kind)
    np.testing.assert_allclose(found, [[value], [gradient]], rtol=1e-12, atol=1e-15)


def test_verl_clamps_its_k3_at_10():
    value, gradient = verl.kl_penalty([[-9.0]], [[-1.0]], "low_var_kl")
    assert (value, gradient) == ([[10.0]], [[0.0]])


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("token-mean", 10 / 4),
        ("token-sum", 10.0),
        ("seq-mean-token-sum", 5.0),
        ("seq-mean-token-mean", 3.0),
        ("seq-mean-token-sum-norm", 5 / 3),
    ],
)
def test_verl_aggregates(mode, expected):
    per_token, mask = [[4.0, 9.0, 9.0], [1.0, 2.0, 3.0]], [[True, False, False], [True, True, True]]
    np.testing.assert_allclose(verl.aggregate(per_token, mask, mode)[0], expected, rtol=1e-7)


def test_verl_values_and_controller():
    value, gradient = verl.value_loss([[2.0, 1.1]], [[3.0, 0.0]], [[1.0, 1.0]], [[True, True]], cliprange_value=0.5)
    np.testing.assert_allclose(value, 0.5 * (1.5**2 + 1.1**2) / 2, rtol=1e-12)
    np.testing.assert_allclose(gradient, [[0.0, 1.1 / 2]], rtol=1e-12)
    np.testing.assert_allclose(verl.adaptive_kl(0.2, 9.0, 64, target=6.0, horizon=10_000), 0.2 * (1 + 0.2 * 64e-4))
    whitened = verl.masked_whiten([[1.0, 3.0, 50.0]], [[True, True, False]])
    np.testing.assert_allclose(whitened[:, :2], [[-math.sqrt(0.5), math.sqrt(0.5)]], rtol=1e-7)


def test_verl_rollout_correction():
    def weights(**settings):
        return verl.rollout_weights(np.log(RATIO), np.zeros((1, 4)), MASK, **settings)

    np.testing.assert_allclose(weights(), [[1.5, 0.5, 1.1, 2.0]], rtol=1e-12)
    np.testing.assert_allclose(weights(threshold="0.8_2.0"), [[1.5, 0.0, 1.1, 0.0]], rtol=1e-12)
    np.testing.assert_allclose(weights(level="sequence", threshold=9.0), np.full((1, 4), np.prod(RATIO)), rtol=1e-12)
    np.testing.assert_allclose(weights(batch_normalize=True).mean(), 1.0, rtol=1e-7)
    # verl's k1 is minus the log ratio: the bounds hold for 1/1.5, 1/0.5, 1/1.1 and 1/5
    kept = verl.rejection_mask(np.log(RATIO), np.zeros((1, 4)), MASK, "token_k1", threshold="0.4_1.2")
    assert kept.tolist() == [[True, False, True, False]]
    assert not verl.rejection_mask(np.log(RATIO), np.zeros((1, 4)), MASK, "seq_max_k2", threshold=1.0).any()


@pytest.mark.parametrize(
    ("loss_type", "settings", "gradient"),
    [
        ("dapo", {}, [0.0, 0.0, -2.2, 5.0]),
        ("dapo", {"delta": 3.0}, [0.0, 0.0, -2.2, 0.0]),
        ("dapo", {"epsilon_high": 0.05}, [0.0, 0.0, 0.0, 5.0]),
        ("grpo", {}, [0.0, 0.0, -2.2, 5.0]),
        ("bnpo", {}, [0.0, 0.0, -2.2, 5.0]),
        ("dr_grpo", {"max_completion_length": 4}, [0.0, 0.0, -2.2, 5.0]),
        ("luspo", {}, [0.0, 0.0, -8.8, 20.0]),
        ("cispo", {}, [-0.2, 0.2, -0.4, 0.2]),  # the default weight is 0.2: epsilon_high is no bound above 1 here
        ("cispo", {"epsilon_high": 5.0}, -ADVANTAGES * RATIO),
        ("dapo", {"beta": 0.5, "use_bias_correction_kl": False}, [0.0, 0.0, -2.2, 5.0] + 0.5 * (1 - 1 / RATIO)),
        # d(ratio * k3) is ratio * log(ratio) when the reference is the old policy
        ("dapo", {"beta": 0.5, "use_bias_correction_kl": True}, [0.0, 0.0, -2.2, 5.0] + 0.5 * RATIO * np.log(RATIO)),
        ("dapo", {"top_entropy_quantile": 0.25, "entropy": [[0.1, 0.2, 0.4, 0.3]]}, [0.0, 0.0, -2.2, 0.0]),
        ("dapo", {"importance_sampling_ratio": [[1.0, 1.0, 1.0, 0.5]]}, [0.0, 0.0, -2.2, 2.5]),
    ],
)
def test_trl_losses(loss_type, settings, gradient):
    settings = {"ref_log_probs": OLD_LOG_PROBS} | settings
    found = trl.grpo_loss(LOG_PROBS, OLD_LOG_PROBS, ADVANTAGES, MASK, loss_type=loss_type, **settings)
    np.testing.assert_allclose(found[1] * 4, np.reshape(gradient, (1, 4)), rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("loss_type", ["sapo", "vespo"])
def test_trl_soft_losses_start_as_policy_gradients(loss_type):
    _, gradient = trl.grpo_loss(OLD_LOG_PROBS, OLD_LOG_PROBS, ADVANTAGES, MASK, loss_type=loss_type)
    np.testing.assert_allclose(gradient * 4, -ADVANTAGES, rtol=1e-12)


def test_trl_sequences():
    arrays = LOG_PROBS, OLD_LOG_PROBS, np.array([-1.0]), MASK
    ratio = np.prod(RATIO) ** 0.25
    value, gradient = trl.grpo_loss(*arrays, loss_type="grpo", importance_sampling_level="sequence")
    np.testing.assert_allclose(value, ratio, rtol=1e-12)
    np.testing.assert_allclose(gradient, np.full((1, 4), ratio / 4), rtol=1e-12)
    np.testing.assert_allclose(trl.rloo_loss(*arrays)[0], ratio**4, rtol=1e-12)
    np.testing.assert_allclose(trl.rloo_loss(*arrays)[1], np.full((1, 4), ratio**4), rtol=1e-12)
    ours = verl.policy_loss("geo_mean", *arrays, clip_ratio_low=0.4, clip_ratio_high=0.4)
    np.testing.assert_allclose(trl.gmpo_loss(*arrays)[0], ours[0], rtol=1e-7)
    dropped = trl.grpo_loss(*arrays, loss_type="grpo", behavior_log_probs=LOG_PROBS + 1, off_policy_mask_threshold=0.5)
    assert dropped[0] == 0 and not dropped[1].any()


def test_trl_weights():
    log_ratio = np.log([[2.0, 1.0], [1.0, 1.0], [1.0, 0.5]])
    mask = np.ones((3, 2), bool)
    weights = trl.gamma_weights([1.0, -1.0, -1.0], log_ratio, mask)
    np.testing.assert_allclose(weights, [4 * math.exp(-3), 1.0, math.e / 8], rtol=1e-12)
    kept = trl.off_policy_mask([1.0, -1.0, -1.0], -log_ratio, np.zeros((3, 2)), mask, threshold=0.1)
    assert kept.tolist() == [True, True, True]
    kept = trl.off_policy_mask([1.0, -1.0, -1.0], log_ratio, np.zeros((3, 2)), mask, threshold=0.1)
    assert kept.tolist() == [True, True, False]
    entropy = np.array([[0.1, 0.4, 9.0], [0.2, 0.3, 0.0]])
    tokens = np.array([[True, True, False], [True, True, False]])
    assert trl.high_entropy_mask(entropy, tokens, quantile=0.5).tolist() == [[False, True, False], [False, True, False]]


def test_nothing_is_left_behind():
    """Neither package, nor a stand-in of a real one, may be what another test in this process imports."""
    import transformers

    with verl._package.entered():
        assert isinstance(sys.modules["verl.protocol"], StandIn)
    assert sys.modules["transformers"] is transformers and not isinstance(transformers, StandIn)
    assert not [name for name in sys.modules if name.split(".")[0] in ("verl", "trl", "ray", "tensordict")]
    assert not [name for name, module in sys.modules.items() if isinstance(module, StandIn)]
    assert float(jax.jit(lambda x: x + 1)(1.0)) == 2.0


def test_what_is_not_there_is_refused():
    with pytest.raises(ImportError, match="requirements-oracles.txt"):
        Package("verl", "0.9.0", bare=(), stand_ins=())
    with pytest.raises(ImportError, match="no version of it"):
        Package("no_such_package", "1.0", bare=(), stand_ins=())
    with pytest.raises(TypeError, match="clip_high"):
        verl.policy_loss("vanilla", LOG_PROBS, OLD_LOG_PROBS, ADVANTAGES, MASK, clip_high=0.2)
    with pytest.raises(TypeError, match="clip_high"):
        trl.grpo_loss(LOG_PROBS, OLD_LOG_PROBS, ADVANTAGES, MASK, clip_high=0.2)
    with pytest.raises(TypeError, match="gama"):
        verl.advantage("gae", GROUP, TOKEN_EACH, values=np.zeros((4, 1)), gama=1.0, lam=1.0)
    with pytest.raises(ValueError, match="groups of 3"):
        verl.advantage("rloo", GROUP, TOKEN_EACH, group_size=3)
