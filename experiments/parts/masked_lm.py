"""A masked-diffusion language model in a run: its mask token, its sampler, its warm start, what it refuses."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from experiments.parts import processes
from experiments.parts import setup as setups
from experiments.parts.setup import Setup, sampling_of
from experiments.parts.warm_start import Own
from rl_jax.core.masked import masked_mean
from rl_jax.core.types import TokenBatch
from rl_jax.losses.masked_diffusion import draw_masks, elbo_terms
from rl_jax.rollout.lm.masked import check_schedule, make_masked_generate
from rl_jax.tasks import Task
from rl_jax.tokenizers.masked import WithMask
from rl_jax.training import sharding
from rl_jax.training.masked_scoring import corrupted, make_masked_score


def check(config: ConfigDict) -> None:
    """Raises ValueError for what the program cannot do."""
    processes.one_process("experiments.masked_diffusion")
    for name, wanted in (("path", ""), ("checkpoint", ""), ("causal", False), ("replay_routes", False)):
        if config.model[name] != wanted:
            raise ValueError(
                f"model.{name}={config.model[name]!r} must be {wanted!r}: masked diffusion trains a bidirectional "
                "model from scratch; no family of such checkpoints is read yet"
            )
    if config.model.lora.rank or config.sft.loss.fn:
        raise ValueError("model.lora.rank must be 0 and sft.loss.fn empty: masked diffusion has neither")
    if config.rollout.stop_strings:
        raise ValueError(
            f"rollout.stop_strings={tuple(config.rollout.stop_strings)!r} must be (): every token of an answer sees "
            "those after the stop, which would be scored as padding; EOS ends an answer (eval.stop_strings are free)"
        )
    if config.sample.memory.last:
        raise ValueError("sample.memory.last=True must be False: masked diffusion does not score earlier answers again")
    if config.rollout.mesh:
        raise ValueError(f"rollout.mesh={config.rollout.mesh!r} must be empty: masked diffusion samples on config.mesh")
    length, algorithm = config.rollout.completion_length, config.algorithm
    if config.eval.completion_length not in (0, length):
        raise ValueError(
            f"eval.completion_length={config.eval.completion_length} must be 0: answers have {length} tokens, always"
        )
    if algorithm.objective == "diffu_grpo" and algorithm.samples != 1:
        raise ValueError(f"algorithm.samples={algorithm.samples} must be 1: diffu_grpo masks all tokens, once")
    if algorithm.prompt_masking and algorithm.objective != "diffu_grpo":
        raise ValueError(f"algorithm.prompt_masking={algorithm.prompt_masking} is for diffu_grpo: set it to 0")
    check_schedule(length, config.denoise.steps, config.denoise.block_length, config.denoise.order)
    hints = config.hints
    if hints.on and not (hints.low <= hints.high and hints.min_chunk <= hints.max_chunk):
        raise ValueError(
            f"hints.low={hints.low} and min_chunk={hints.min_chunk} must be at most high={hints.high} and "
            f"max_chunk={hints.max_chunk}"
        )
    if hints.on and hints.replaced >= (size := config.sample.group_size):
        raise ValueError(
            f"hints.replaced={hints.replaced} must be below sample.group_size={size}: a group of right answers only "
            "has no signal"
        )


def make_setup(config: ConfigDict, task: Task | None = None) -> Setup:
    """The Setup whose tokenizer, and so its model, has a mask token. task: replaces config.task."""
    task = task or setups.load_task(config)
    return setups.make_setup(config, task._replace(tokenizer=WithMask(task.tokenizer)))


def make_sampler(setup: Setup, fields: ConfigDict, group_size: int) -> Callable:
    """generate of rl_jax.rollout.lm.masked. fields: config.rollout or config.eval, for temperature and cuts."""
    config, tokenizer = setup.config, setup.task.tokenizer
    return make_masked_generate(
        setup.model,
        mask_id=tokenizer.mask_id,
        completion_length=config.rollout.completion_length,
        **config.denoise.to_dict(),
        group_size=group_size,
        sampling=sampling_of(fields),
        eos_ids=tokenizer.eos_ids,
    )


def jit_sampler(setup: Setup) -> Callable:
    """The compiled sampler of the training rows: (params, tokens, prompt_mask, key, given) -> Rollout."""
    rows, everywhere = sharding.batch_sharding(setup.mesh), sharding.replicated(setup.mesh)
    return jax.jit(
        make_sampler(setup, setup.config.rollout, setup.config.sample.group_size),
        in_shardings=(setup.param_shardings, rows, rows, everywhere, rows),
        out_shardings=rows,
    )


def filled_up(batch: TokenBatch, completion_mask: jax.Array, eos_id: int) -> TokenBatch:
    """Rows whose answers go on with EOS to their last column, as LLaDA's do. completion_mask: bool [B, C]."""
    length = completion_mask.shape[1]
    lengths = jnp.sum(batch.segment_ids[:, :-length] != 0, axis=1, dtype=jnp.int32)
    answers = jnp.where(completion_mask, batch.tokens[:, -length:], eos_id)
    tails = (answers, lengths[:, None] + jnp.arange(length, dtype=jnp.int32)[None], jnp.ones_like(answers))
    fields = (batch.tokens, batch.positions, batch.segment_ids)
    pairs = zip(fields, tails, strict=True)
    return TokenBatch(*(jnp.concatenate([field[:, :-length], tail], axis=1) for field, tail in pairs))


def own(setup: Setup) -> Own:
    """How the model is fine-tuned (minus the ELBO per token, one draw of masks per row and step) and evaluated."""
    masking, mask_id, eos_id = setup.config.algorithm.masking, setup.task.tokenizer.mask_id, setup.task.tokenizer.eos_id
    score = make_masked_score(setup.model, mask_id=mask_id)

    def loss_fn(params, batch):
        tokens, completion_mask, seeds = batch
        whole = filled_up(tokens, completion_mask, eos_id)
        masked, weights = draw_masks(jax.vmap(jax.random.key)(seeds), 1, completion_mask.shape[1], how=masking)
        scores = score(params, corrupted(whole, masked, mask_id))
        terms = elbo_terms(scores.log_probs[:, None], masked, weights)
        metrics = {"entropy": masked_mean(scores.entropy, masked[:, 0])}
        return masked_mean(-terms, jnp.ones_like(terms, bool)), jax.lax.stop_gradient(metrics)

    return Own(loss_fn, make_sampler(setup, setup.config.eval, setup.config.eval.samples_per_prompt))
