"""models/user_head.py: rewards of users whose pairs are read, against loops in numpy; and the config that trains it."""

import jax
import numpy as np
import pytest

from configs.preferences import users
from experiments.parts import check_config, reward_readers
from experiments.parts.setup import make_setup
from rl_jax import preferences
from rl_jax.models import user_head


@pytest.fixture(scope="module")
def case():
    rng, latent = np.random.default_rng(0), 4
    head = user_head.init_user_head(jax.random.key(1), 3, hidden=5, latent=latent)
    hidden, noise = rng.normal(size=(6, 2, 3)).astype(np.float32), rng.normal(size=(6, latent)).astype(np.float32)
    ids, live = np.array([0, 1, 0, 1, 0, 2]), np.array([True, True, True, True, False, True])
    return head, hidden, ids, live, noise, jax.jit(user_head.user_rewards)


def mlp(layers, x):
    for place, layer in enumerate(layers):
        x = np.where(x > 0, x, 0.2 * x) if place else x
        x = x @ np.asarray(layer["kernel"], np.float64) + np.asarray(layer["bias"])
    return x


def by_hand(head, hidden, ids, live, noise):
    """One row after the other, as vae_utils.py of vpl_llm has them."""
    rewards, kls = [], []
    for row in range(len(ids)):
        context = [mlp(head["pair"], hidden[j].reshape(-1)) for j in range(len(ids))
                   if j != row and ids[j] == ids[row] and live[j]]  # fmt: skip
        z, kl = np.zeros(noise.shape[1]), 0.0
        if context:
            attended = []
            for one in context:
                scores = np.array([mlp(head["query"], one) @ mlp(head["key"], other) for other in context])
                weights = np.exp(scores / np.sqrt(len(one)))
                values = [mlp(head["value"], other) for other in context]
                attended.append(sum(w * v for w, v in zip(weights / weights.sum(), values, strict=True)))
            read = np.mean(attended, axis=0)
            mean, log_var = (np.clip(mlp(head[name], read), -1, 1) for name in ("mean", "log_var"))
            kl = -0.5 * np.sum(1 + log_var - mean**2 - np.exp(log_var))
            z = mean + np.exp(log_var / 2) * noise[row]
            z *= np.sqrt(len(z)) / np.linalg.norm(z)
        rewards.append([mlp(head["reward"], np.concatenate([h, z]))[0] for h in hidden[row]])
        kls.append(kl)
    return np.array(rewards), np.array(kls)


def test_rewards_and_kl_are_those_of_the_paper(case):
    head, hidden, ids, live, noise, fn = case
    rewards, kl = fn(head, hidden, ids, live, noise)
    expected = by_hand(head, hidden, ids, live, noise)
    np.testing.assert_allclose(rewards, expected[0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(kl, expected[1], rtol=1e-4, atol=1e-6)
    assert kl[5] == 0 and kl[0] > 0


def test_a_pair_does_not_tell_its_own_user(case):
    """The labels of a row, and those of other users, do not move its z: swapping them swaps its rewards, no more."""
    head, hidden, ids, live, noise, fn = case
    turned = hidden.copy()
    turned[[0, 1, 3]] = hidden[[0, 1, 3], ::-1]
    plain, found = fn(head, hidden, ids, live, noise)[0], fn(head, turned, ids, live, noise)[0]
    np.testing.assert_allclose(found[0], plain[0, ::-1], rtol=1e-5)
    assert not np.allclose(found[2], plain[2])  # row 0 is what is known of its user


def test_the_users_judge_the_same_two_answers_in_opposite_ways(tmp_path):
    """One reward for both is right half of the time."""
    data = users.get_config().data.to_dict() | dict(num_prompts=10, data_dir=str(tmp_path))
    source, seen = preferences.load(**data).data_source("train"), {}
    for record in (source[i] for i in range(len(source))):
        seen.setdefault(record["prompt"], {})[record["info"]["user"]] = record["responses"]
    assert len(seen) > 5 and all(pair[0] == pair[1][::-1] for pair in seen.values())


@pytest.mark.slow
def test_the_kl_is_added_with_its_weight():
    """Its mean over the pairs, though a pair has two terms of the loss."""
    config = users.get_config("smoke")
    config.model.update(embed_dim=16, num_layers=1, num_heads=2, num_kv_heads=2, head_dim=8, mlp_dim=32)
    config.algorithm.loss = dict(fn="mse")
    setup = make_setup(config)
    reader = reward_readers.make_reader(setup)
    params = reader.add_head(setup.init_params(), jax.random.key(0))
    records = [
        {"prompt": "1+1=", "responses": ["2", "3"], "rewards": [1.0, 0.0], "info": {"user": i % 2}} for i in range(4)
    ]
    batch = reader.batch(reader.encode(records)[0], np.arange(3), 4)
    result, metrics = jax.jit(reader.loss)(params, batch)
    assert float(result.count) == 6 and float(metrics["kl"].value()) > 0.1
    expected = float(metrics["compare"].value()) + 0.01 * float(metrics["kl"].value())
    np.testing.assert_allclose(float(result.value()), expected, rtol=1e-5)


@pytest.mark.parametrize("arg", [None, "order", "blind,smoke"])
def test_its_config_can_run(arg):
    config = users.get_config(arg)
    check_config.check(config)
    assert (config.algorithm.reads == "user") == ("blind" not in (arg or ""))
