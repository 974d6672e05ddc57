"""SPO's head of degrees in experiments.dpo: it learns, is saved beside the model's own params, and a run resumes."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs.preferences import given
from experiments import dpo
from experiments.parts import preference_steps, trained_heads
from experiments.parts.preference_data import Encoder, PreferencePacker, flat, records_of
from experiments.parts.setup import load_params, make_setup
from experiments.plan import pairs
from rl_jax import preferences
from rl_jax.models.heads import DEGREE, REWARD
from rl_jax.training import checkpoint
from rl_jax.training.step import TrainState
from tests.experiments import small
from tests.experiments.shared_programs import share_programs, sharing  # noqa: F401  fixtures
from tests.experiments.small import kept_signals  # noqa: F401

pytestmark = pytest.mark.usefixtures("kept_signals")


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """Pairs of three words, so that copies have three, two and one of them."""
    data, rng = tmp_path_factory.mktemp("data"), np.random.default_rng(0)

    def text(letters):
        return ",".join("".join(rng.choice(list(letters), 2)) for _ in range(3))

    rows = [dict(prompt="".join(rng.choice(list("abc"), 3)), chosen=text("xz"), rejected=text("yz")) for _ in range(80)]
    path = data / "pairs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return dict(name="jsonl", path=str(path), kind="pairs", data_dir=str(data / "tfds"))


def config(file, **algorithm):
    found = given.get_config("smoke")
    found.data = dict(name="degraded", of=file, degrees=3, said=False)
    found.task.alphabet = "abcxyz,"
    found.model.update(embed_dim=16, num_layers=1, num_heads=2, num_kv_heads=2, head_dim=8, mlp_dim=16)
    found.rollout.update(completion_length=9, prompt_buckets=(4,))
    found.encode.update(identical="drop")
    found.sft.steps = 0
    found.train.update(steps=4, batch_size=16)
    found.train.optimizer.learning_rate = 1e-2
    found.eval.update(every=4, batch_size=16, num_prompts=16)
    found.checkpoint.every = 2
    found.log.update(progress=False, tensorboard=False)
    slots = dict(responses=6, compare=dict(fn="first_pair"), regularizer=dict(fn="degree_head_nll"))
    for name, value in (slots | dict(regularizer_coef=1.0) | algorithm).items():
        found.algorithm[name] = value
    return found


def encoded(setup, limit=None):
    """(arrays of the training records, Encoder)."""
    encode = Encoder(setup, preference_steps.make_objective(setup.config).needs())
    found = preferences.load(**setup.config.data.to_dict())
    return encode(records_of(found, "train", 6, limit=limit))[0], encode


@pytest.mark.slow
def test_it_learns_degrees_and_preferences(file):
    """On 3 of 3 seeds; a head that is not trained says one degree of all: right for a third of the responses."""
    setup = make_setup(config(file, reference={}))
    arrays, encode = encoded(setup)
    programs, state = preference_steps.build(setup, preference_steps.with_degree_head(setup, setup.init_params()))
    fresh = jax.device_get(state._replace(rng=None))
    train, held_out = (encode.batch(arrays, rows) for rows in (np.arange(48), np.arange(48, 64)))
    for seed in range(3):
        rng = np.random.default_rng(seed)
        params = jax.tree.map(lambda x, rng=rng: np.float32(x * (1 + 0.5 * rng.normal(size=x.shape))), fresh.params)
        state = jax.device_put(fresh._replace(params=params))._replace(rng=jax.random.key(seed))
        before = programs.evaluate(state.params, held_out, None)[0]
        np.testing.assert_allclose(before["degrees/accuracy"].value(), 1 / 3, rtol=1e-5)
        for _ in range(15):
            state, _ = programs.train_step(state, train, None)
        after = programs.evaluate(state.params, held_out, None)[0]
        assert after["degrees/accuracy"].value() > 0.8 and after["rewards/accuracy"].value() > 0.8


@pytest.mark.slow
def test_a_stopped_run_ends_where_an_undisturbed_one_does(file, tmp_path):
    """With adapters, and copies that share their prompt; the params that other programs load have no head."""

    def adapted():
        found = config(file)
        found.model.lora.rank, found.packing.mode = 2, "shared_prefix"
        return found

    whole, part = tmp_path / "whole", tmp_path / "part"
    dpo.run(adapted(), whole)
    assert small.cut_off(whole, part) == 2
    dpo.run(adapted(), part)
    for name in ("metrics.jsonl", "final.json"):
        assert (part / name).read_bytes() == (whole / name).read_bytes()
    assert set(load_params(make_setup(adapted()), whole)) == {"base", "adapters"}
    like = {"head": {DEGREE: {"kernel": jnp.zeros((16, 3)), "bias": jnp.zeros(3)}}}
    with checkpoint.Checkpointer(whole / "checkpoints", every=1) as checkpoints:
        head = checkpoints.restore(like)[0]["head"][DEGREE]
    assert np.abs(head["kernel"]).max() > 1e-3


def test_what_the_head_reads(file):
    """The hidden state of the last token, in padded and in packed rows, with a gradient to the whole model."""
    setup = make_setup(config(file))
    arrays, encode = encoded(setup, 4)
    batch = encode.batch(arrays)
    np.testing.assert_array_equal(batch.extras["degrees"], [[0, 0, 1, 2, 1, 2]] * 4)
    params = preference_steps.with_degree_head(setup, setup.init_params())
    assert not any(x.any() for x in params[DEGREE].values())
    params[DEGREE]["kernel"] = jax.random.normal(jax.random.key(0), (16, 3))
    score, score_more = preference_steps.make_scores(setup, {"degree_logits"})

    @jax.jit
    def read(params, batch):
        def logits(own):
            return jnp.sum(jnp.square(score_more(own, batch, None)[1]["degree_logits"]))

        return score_more(params, batch, None), jax.grad(logits)(params)

    (scores, extras), slopes = read(params, batch)
    hidden = jax.jit(setup.model.apply)(params, flat(batch.batch))
    last = [max(np.flatnonzero(row)) for row in np.asarray(flat(batch.batch).segment_ids)]
    expected = np.asarray(hidden)[np.arange(24), last] @ np.asarray(params[DEGREE]["kernel"])
    np.testing.assert_allclose(extras["degree_logits"].reshape(24, 3), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(scores.log_probs, jax.jit(score)(params, flat(batch.batch)).log_probs, atol=1e-5)
    assert all(np.abs(x).max() > 0 for x in jax.tree.leaves(slopes))
    setup.config.packing.mode = "shared_prefix"
    packed = PreferencePacker(setup)(batch)
    np.testing.assert_allclose(
        jax.jit(score_more)(params, packed, None)[1]["degree_logits"], extras["degree_logits"], atol=1e-4
    )


def test_what_cannot_be_done_is_said(file):
    found = config(file)
    setup = make_setup(found)
    with pytest.raises(ValueError, match="degree_head_nll needs a head that only experiments.dpo trains"):
        preference_steps.build(setup, setup.init_params())
    with pytest.raises(ValueError, match="response_weights of the whole vocabulary cannot be had beside degree_logits"):
        preference_steps.make_scores(setup, {"degree_logits", "response_weights"})
    with pytest.raises(ValueError, match="plans have no head of degrees"):
        pairs.train(setup, 12)
    found.data.said = True
    with pytest.raises(ValueError, match="learns degrees that no response says"):
        preference_steps.with_degree_head(setup, {})
    found.data = file
    with pytest.raises(ValueError, match="learns degrees that no response says"):
        preference_steps.with_degree_head(setup, {})
    found.algorithm.regularizer_coef = 0.0
    assert preference_steps.with_degree_head(setup, {}) == {}  # nothing would train it


def test_heads_are_saved_apart():
    model = {"embed": jnp.ones(2)}
    for name in (REWARD, DEGREE, None):
        params = model | ({name: {"bias": jnp.zeros(1)}} if name else {})
        items = trained_heads.checkpoint_items(TrainState(0, params, (), None, 0, 0))
        assert set(items) == {"params", "rest"} | ({"head"} if name else set())
        assert items["params"] == model and items["rest"].params == ()
        assert trained_heads.state_of(items).params == params
