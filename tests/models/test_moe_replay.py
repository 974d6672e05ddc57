"""R3, arXiv 2510.11370: experts recorded in sampling run again in scoring and training."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax.models.transformer.model import TransformerConfig, make_routed_apply, make_transformer
from rl_jax.rollout.lm.continuous import Engine
from rl_jax.rollout.lm.engine import make_generate
from rl_jax.rollout.lm.requests import as_rollout, requests_of
from rl_jax.training.scoring import make_score

MOE = TransformerConfig(
    vocab_size=32, embed_dim=32, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=8, mlp_dim=16,
    num_experts=8, experts_per_token=2,
)  # fmt: skip
LENGTH = 5
PROMPTS = np.array([[0, 3, 4], [5, 6, 7]]), np.array([[False, True, True], [True] * 3])


@functools.cache
def sampled():
    """(params, the recording model's rollout, that of the plain one) of 2 prompts x 2 rows."""
    params = jax.jit(make_transformer(MOE).init)(jax.random.key(0))
    params["layers"]["experts"]["router"]["kernel"] *= 3.0
    tokens, mask = map(jnp.array, PROMPTS)
    rollouts = []
    for record in (True, False):
        model = make_transformer(MOE, record_routes=record)
        generate = make_generate(model, completion_length=LENGTH, group_size=2, eos_ids=(1,))
        rollouts.append(jax.jit(generate)(params, tokens, mask, jax.random.key(1)))
    return params, *rollouts


@functools.cache
def forward():
    return jax.jit(make_routed_apply(MOE))


def chosen_by(params, batch):
    """[B, T, L, k]. What the routers choose by themselves."""
    return np.moveaxis(np.asarray(forward()(params, batch._replace(routes=None))[1].chosen), 0, 2)


def newer_than(params):
    newer = jax.tree.map(lambda x: x, params)
    newer["layers"]["experts"]["router"]["kernel"] += 0.3 * jax.random.normal(jax.random.key(5), (2, 32, 8))
    return newer


@functools.cache
def score():
    return jax.jit(make_score(make_transformer(MOE), completion_length=LENGTH, chunk=LENGTH))


def known(batch):
    """bool [B, T]. Tokens that the sampler has read: all but each row's last one."""
    real = np.asarray(batch.segment_ids) > 0
    last = real & (np.cumsum(real[:, ::-1], axis=1)[:, ::-1] == 1)
    return real & ~last


def test_recording_changes_no_sample():
    _, recorded, plain = sampled()
    assert plain.batch.routes is None
    for one, other in zip(jax.tree.leaves(recorded._replace(batch=recorded.batch._replace(routes=None))),
                          jax.tree.leaves(plain), strict=True):  # fmt: skip
        np.testing.assert_array_equal(one, other)


def test_what_is_recorded_is_what_a_forward_chooses():
    params, rollout, _ = sampled()
    batch = rollout.batch
    assert batch.routes.dtype == jnp.int16 and batch.routes.shape == (*batch.tokens.shape, 2, 2)
    chosen = chosen_by(params, batch)
    where = known(batch)
    np.testing.assert_array_equal(np.asarray(batch.routes)[where], chosen[where])
    assert len(np.unique(chosen[where], axis=0)) > 4  # a router of a mind


def test_replay_is_a_no_op_where_sampler_and_trainer_are_the_same():
    """Scores to the bit, and the gradients that train up to their last: two programs, which sum in their own orders."""
    params, rollout, _ = sampled()
    plain = rollout.batch._replace(routes=None)

    def loss(params, batch):
        return jnp.sum(jnp.where(rollout.completion_mask, score()(params, batch).log_probs, 0.0))

    both = [jax.jit(jax.value_and_grad(loss))(params, batch) for batch in (rollout.batch, plain)]
    (replayed, own), (scored, other) = both
    assert replayed == scored
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6), own, other)
    assert all(np.abs(leaf).max() > 0 for leaf in jax.tree.leaves(both[0][1]["layers"]["experts"]["router"]))


def test_newer_params_run_the_recorded_experts():
    """Weighed by the newer router's own probabilities; without the record other experts run."""
    params, rollout, _ = sampled()
    newer = newer_than(params)
    replayed, plain = (score()(newer, rollout.batch._replace(routes=r)) for r in (rollout.batch.routes, None))
    assert np.abs(replayed.log_probs - plain.log_probs)[np.asarray(rollout.completion_mask)].max() > 1e-3
    chosen = np.moveaxis(np.asarray(rollout.batch.routes, np.int32), 2, 0)
    chosen = np.where(chosen < 0, 0, chosen)
    hidden, stats = jax.jit(make_routed_apply(MOE))(newer, rollout.batch._replace(routes=None), chosen)
    ours = jax.jit(make_transformer(MOE).apply)(newer, rollout.batch)
    where = known(rollout.batch)
    np.testing.assert_allclose(np.asarray(ours)[where], np.asarray(hidden)[where], rtol=1e-5, atol=1e-6)
    del stats


@pytest.mark.slow
def test_the_continuous_engine_records_what_ran():
    """As lockstep does. When new weights come, what was read keeps its experts, or after an abort gets new ones."""
    params, rollout, _ = sampled()
    newer, batch = newer_than(params), rollout.batch
    sizes = dict(slots=4, sizes=(4,), refill=4, prompt_length=7, length=9, chunk=4, steps=2, prefill_rows=1)
    engine = Engine(make_transformer(MOE, record_routes=True), eos_ids=(1,), **sizes)

    def rows(then=(params, 0), *, interrupt=False):
        engine.submit(requests_of(*PROMPTS, group_size=2, max_tokens=LENGTH), jax.random.key(1))
        done = engine.step(params)  # 3 tokens of each row, of which the last is not read yet
        if interrupt:
            engine.submit([part.resumed() for part in engine.abort()], jax.random.key(1))
        while not engine.idle:
            done += engine.step(*then)
        done.sort(key=lambda one: one.request.index)
        return as_rollout(done, *PROMPTS, completion_length=LENGTH, pad_id=0, with_versions=True)

    same, kept, anew = rows(), rows((newer, 1)), rows((newer, 1), interrupt=True)
    np.testing.assert_array_equal(same.batch.tokens, batch.tokens)
    where = known(batch)
    np.testing.assert_array_equal(same.batch.routes[where], np.asarray(batch.routes)[where])
    assert (same.batch.routes[~where] == -1).all() and same.batch.routes.dtype == np.int16
    before = np.arange(8) < 3 + 2  # columns of tokens that the first call has read
    for found, of_before in ((kept, params), (anew, newer)):
        went_on = np.any(found.completion_mask & (found.versions == 1), axis=1)
        where, routes = known(found.batch) & went_on[:, None], found.batch.routes
        old, new = chosen_by(of_before, found.batch), chosen_by(newer, found.batch)
        np.testing.assert_array_equal(routes[where & before], old[where & before])
        agree = (routes[where & ~before] == new[where & ~before]).mean()  # the rest read an older cache, if it was kept
        assert agree == 1.0 if of_before is newer else agree > 0.5
        assert went_on.sum() > 1 and (chosen_by(params, found.batch) != new)[where & before].any()


def test_a_dense_model_has_nothing_to_record():
    with pytest.raises(ValueError, match="num_experts is 0"):
        make_transformer(TransformerConfig(vocab_size=8, embed_dim=8, num_layers=1, num_heads=1, num_kv_heads=1,
                                           head_dim=8, mlp_dim=8), record_routes=True)  # fmt: skip
