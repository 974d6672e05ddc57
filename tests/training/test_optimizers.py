"""training/optimizers.py: each rule's first updates against numpy, on stacked layers, with frozen params, on a mesh."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from configs import common
from configs.tasks import arithmetic
from experiments import sft
from experiments.parts.check_config import check
from experiments.parts.training import make_optimizer
from rl_jax.core.binding import bind, public_functions
from rl_jax.core.types import path_name
from rl_jax.models.hf.loading import param_shapes
from rl_jax.models.partition import freeze
from rl_jax.training import optimizers, sharding
from rl_jax.training.step import make_schedule
from tests.experiments import small
from tests.experiments.shared_programs import share_programs, sharing  # noqa: F401  fixtures
from tests.experiments.small import kept_signals  # noqa: F401  a fixture
from tests.tiny import CONFIG

RATE = 0.1


def params(seed=0):
    rng = np.random.default_rng(seed)
    shapes = {"embed": {"embedding": (10, 4)}, "layers": {"q": {"kernel": (2, 4, 6), "bias": (2, 6)}}}
    return jax.tree.map(lambda s: rng.normal(size=s).astype(np.float32), shapes, is_leaf=lambda x: isinstance(x, tuple))


def updated(optimizer, steps=2, start=None):
    """The params after some updates with known gradients."""
    now = params() if start is None else start
    state = optimizer.init(now)
    for step in range(steps):
        updates, state = optimizer.update(params(step + 1), state, now)
        now = optax.apply_updates(now, updates)
    return now, state


def by_leaf(rule, steps=2):
    """rule: (params, list of gradients so far) -> the next params, leaf by leaf in numpy."""
    def leaf(start, *gradients):
        now = start.astype(np.float64)
        for step in range(steps):
            now = rule(now, [g.astype(np.float64) for g in gradients[: step + 1]])
        return now

    return jax.tree.map(leaf, params(), *(params(step + 1) for step in range(steps)))


def adamw(now, gradients, b1=0.9, b2=0.99, eps=1e-6, decay=0.1):
    t = len(gradients)
    mean = sum((1 - b1) * b1 ** (t - 1 - i) * g for i, g in enumerate(gradients)) / (1 - b1**t)
    square = sum((1 - b2) * b2 ** (t - 1 - i) * g**2 for i, g in enumerate(gradients)) / (1 - b2**t)
    return now - RATE * (mean / (np.sqrt(square) + eps) + decay * now)


def lion(now, gradients, decay=0.1):
    mean = sum(0.01 * 0.99 ** (len(gradients) - 2 - i) * g for i, g in enumerate(gradients[:-1]))
    return now - RATE * (np.sign(0.9 * mean + 0.1 * gradients[-1]) + decay * now)


def sgd(now, gradients, decay=0.1):
    return now - RATE * (gradients[-1] + decay * now)


def assert_close(found, expected, rtol=1e-5):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=rtol, atol=1e-6), found, expected)


@pytest.mark.parametrize("name", ["adamw", "lion", "sgd"])
def test_two_updates_in_numpy(name):
    spec, rule = dict(fn=name), {"adamw": adamw, "lion": lion, "sgd": sgd}[name]
    fields = dict(b1=0.9, b2=0.99, eps=1e-6, weight_decay=0.1)  # of the config; lion and sgd have no b1, b2, eps
    optimizer = bind(spec, optimizers, **fields)(make_schedule(learning_rate=RATE))
    assert_close(updated(optimizer)[0], by_leaf(rule))


def test_adamw_is_what_it_always_was():
    fields = dict(b1=0.9, b2=0.999, eps=1e-8, weight_decay=0.0)
    schedule = make_schedule(learning_rate=RATE, warmup_steps=2)
    found = bind(dict(fn="adamw"), optimizers, **fields)(schedule)
    jax.tree.map(np.testing.assert_array_equal, updated(found), updated(optax.adamw(schedule, **fields)))


def test_muon_orthogonalises_each_layers_matrix_and_leaves_the_rest_to_adamw():
    optimizer = optimizers.muon(optax.constant_schedule(RATE), weight_decay=0.1)
    start, (now, _) = params(), updated(optimizer, steps=1)
    assert_close(now["embed"], updated(optax.adamw(RATE, weight_decay=0.1, nesterov=True), steps=1)[0]["embed"])
    for layer in range(2):
        old = start["layers"]["q"]["kernel"][layer]
        step = (old - now["layers"]["q"]["kernel"][layer]) / RATE - 0.1 * old
        values = np.linalg.svd(np.asarray(step, np.float64), compute_uv=False)
        # Newton-Schulz brings singular values to about 1; then the update has rms 0.2 x sqrt(larger side).
        assert 0.6 < values.min() / (0.2 * np.sqrt(6)) and values.max() / (0.2 * np.sqrt(6)) < 1.3
        u, _, v = np.linalg.svd(np.asarray(params(1)["layers"]["q"]["kernel"][layer], np.float64), full_matrices=False)
        assert np.sum(u @ v * step) / np.linalg.norm(step) / 2 > 0.97, "the direction of the gradient's polar factor"


def test_muon_takes_each_expert_apart_and_leaves_the_router_to_adamw():
    config = dataclasses.replace(CONFIG, num_experts=3, experts_per_token=2)
    rng = np.random.default_rng(0)
    start, gradient = (
        jax.tree.map(lambda leaf: rng.normal(size=leaf.shape).astype(np.float32), param_shapes(config))
        for _ in range(2)
    )
    optimizer = optimizers.muon(optax.constant_schedule(RATE), weight_decay=0.1)
    found = optimizer.update(gradient, optimizer.init(start), start)[0]["layers"]
    alone = optax.contrib.muon(RATE, consistent_rms=0.2, weight_decay=0.1)  # of one matrix [in, out]
    adam = optax.adamw(RATE, weight_decay=0.1, nesterov=True)

    def by(rule, pick):
        value, slope = pick(start["layers"]), pick(gradient["layers"])
        return rule.update(slope, rule.init(value), value)[0]

    for name in ("gate", "up", "down"):
        assert found["experts"][name].ndim == 4
        for layer, expert in ((0, 0), (1, 2)):
            expected = by(alone, lambda tree: tree["experts"][name][layer, expert])  # noqa: B023
            np.testing.assert_allclose(found["experts"][name][layer, expert], expected, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found["q"]["kernel"][1], by(alone, lambda x: x["q"]["kernel"][1]), rtol=1e-4, atol=1e-6)
    router = by(adam, lambda tree: tree["experts"]["router"]["kernel"])
    np.testing.assert_allclose(found["experts"]["router"]["kernel"], router, rtol=1e-5)


def test_adafactors_updates_have_bounded_size_and_few_states():
    big = {"w": np.random.default_rng(0).normal(size=(128, 256)).astype(np.float32)}
    optimizer = optimizers.adafactor(optax.constant_schedule(RATE))
    state = optimizer.init(big)
    assert sum(x.size for x in jax.tree.leaves(state)) < 500 < big["w"].size
    updates, _ = optimizer.update({"w": 1e3 * big["w"]}, state, big)
    rms = np.sqrt(np.mean(np.square(updates["w"])))
    assert 0.9 * RATE < rms <= RATE * (1 + 1e-5) and np.sum(np.asarray(updates["w"]) * big["w"]) < 0
    decayed = optimizers.adafactor(optax.constant_schedule(RATE), weight_decay=0.5)
    zero, _ = decayed.update({"w": 0 * big["w"]}, decayed.init(big), big)
    np.testing.assert_allclose(zero["w"], -RATE * 0.5 * big["w"], rtol=1e-5)


@pytest.mark.parametrize("name", public_functions(optimizers))
def test_every_rule_works_on_a_mesh_and_beside_frozen_params(name):
    rule = getattr(optimizers, name)(optax.constant_schedule(RATE), weight_decay=0.1, decayed="matrices")
    optimizer = freeze(rule, "embed")
    mesh = sharding.make_mesh(sharding.parse_mesh("data:2,fsdp:2,tensor:2"))
    start = params()
    state = jax.eval_shape(optimizer.init, start)

    def run(start, *gradients):
        state, now = optimizer.init(start), start
        for gradient in gradients:
            updates, state = optimizer.update(gradient, state, now)
            now = optax.apply_updates(now, updates)
        return now, state

    places = sharding.tree_shardings(start, mesh), sharding.tree_shardings(state, mesh)
    given = [jax.device_put(x, places[0]) for x in (start, params(1), params(2))]
    found, _ = jax.jit(run, out_shardings=places)(*given)
    expected, _ = jax.jit(run)(*map(jax.tree.map, [jnp.asarray] * 3, (start, params(1), params(2))))
    assert_close(found, expected, rtol=1e-4)
    np.testing.assert_array_equal(found["embed"]["embedding"], start["embed"]["embedding"])
    assert np.abs(found["layers"]["q"]["kernel"] - start["layers"]["q"]["kernel"]).max() > 1e-3


@pytest.mark.parametrize("name", public_functions(optimizers))
def test_norms_and_biases_decay_only_if_told(name):
    """What two updates make of each param: as without a decay, if it does not decay."""
    shapes = {
        "embed": {"embedding": (10, 4)},
        "layers": {"q": {"kernel": (2, 4, 6), "bias": (2, 6)}, "mlp_norm": {"scale": (2, 4)},
                   "experts": {"up": (2, 3, 4, 6)}},
        "adapters": {"layers": {"q": {"a": (2, 4, 2), "magnitude": (2, 6)}}},
        "final_norm": {"scale": (4,), "bias": (4,)},
    }  # fmt: skip
    rng = np.random.default_rng(0)

    def draw():
        return jax.tree.map(lambda s: rng.normal(size=s).astype(np.float32), shapes, is_leaf=lambda x: type(x) is tuple)

    start, gradients = draw(), [draw(), draw()]

    def change(**fields):
        optimizer = getattr(optimizers, name)(optax.constant_schedule(RATE), **fields)
        now, state = start, optimizer.init(start)
        for gradient in gradients:
            updates, state = optimizer.update(gradient, state, now)
            now = optax.apply_updates(now, updates)
        return {path_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(now)}

    none, default, every, matrices = (
        change(weight_decay=decay, **more)
        for decay, more in [(0.0, {}), (0.1, {}), (0.1, {"decayed": "all"}), (0.1, {"decayed": "matrices"})]
    )
    for path, leaf in none.items():
        np.testing.assert_array_equal(default[path], every[path])
        assert np.abs(every[path] - leaf).max() > 1e-4, path
        decays = path.rpartition("/")[2] in ("embedding", "kernel", "up", "a")
        np.testing.assert_allclose(matrices[path], (every if decays else none)[path], rtol=1e-6, err_msg=path)
    with pytest.raises(ValueError, match="decayed='some' is none of all, matrices"):
        change(decayed="some")


def test_a_config_names_it():
    fields = common.optimizer(learning_rate=RATE, rule=dict(fn="lion", beta_mean=0.9), decay="linear", decay_steps=2)
    optimizer, schedule = make_optimizer(fields)
    np.testing.assert_allclose([schedule(i) for i in range(3)], [RATE] * 3, rtol=1e-6)
    assert len(jax.tree.leaves(updated(optimizer)[1])) == len(jax.tree.leaves(params())) + 2, "one state per param"
    fields = common.optimizer(learning_rate=RATE, weight_decay=0.1, decayed="matrices")
    (now, _), (still, _) = (updated(make_optimizer(x)[0]) for x in (fields, common.optimizer(learning_rate=RATE)))
    assert_close(now["layers"]["q"]["bias"], still["layers"]["q"]["bias"])
    assert np.abs(now["embed"]["embedding"] - still["embed"]["embedding"]).max() > 1e-3
    for rule, said in [("lyon", "has no function 'lyon'; it has: adafactor, adamw, lion"), ("sgd", None)]:
        config = arithmetic.get_config("smoke")
        config.train.optimizer.rule.fn = rule
        if said is None:
            check(config)
        else:
            with pytest.raises(ValueError, match=rf"train.optimizer.rule: .*{said}"):
                check(config)


@pytest.mark.slow
@pytest.mark.usefixtures("kept_signals")
def test_a_run_with_muon_is_resumed_bit_for_bit(tmp_path):
    def run(name, steps):
        fields = dict(sft__steps=steps, sft__batch_size=8, sft__eval_every=4, checkpoint__every=100)
        config = small.config(tmp_path, sft__optimizer__decay="sqrt", sft__optimizer__decay_steps=4, **fields)
        config.sft.optimizer.rule.fn = "muon"
        sft.run(config, tmp_path / name)
        return json.loads((tmp_path / name / "final.json").read_text())["params_sha256"]

    run("resumed", 2)
    assert run("resumed", 4) == run("whole", 4)
