"""A judge that rewrites answers: rewards on the tokens that it would keep or change (seq2seq reward modelling)."""

import jax
import jax.numpy as jnp
import numpy as np

from experiments.parts.judges.base import (
    Judge,
    Rows,
    Verdict,
    in_batches,
    judge_prompts,
    lay_out,
    load_run,
    mode_of,
    sampled_ids,
)
from experiments.parts.setup import Setup
from rl_jax.credit.rewrites import rewrite_rewards
from rl_jax.preferences.judge_task import REWRITE, fill
from rl_jax.training.token_rollouts import make_token_rollouts


def rewrites(
    setup: Setup,
    *,
    path: str,
    template: str = REWRITE,
    kept: float = 1.0,
    changed: float = -1.0,
    batch_size: int = 64,
) -> Judge:
    """Token rewards where a model that was trained to rewrite answers agrees or not (rl_jax.credit.rewrites).

    The model reads the question with the answer in it, then the answer again, token by token; no text is sampled, since
    up to the first difference its greedy rewriting is the answer. Source: arXiv 2409.00162.

    Args:
      setup: of the run.
      path: workdir of a run of experiments.sft on rl_jax.preferences.judge_task, form "rewrite".
      template: the question that the model was trained on, with {prompt} and {completion}.
      kept: reward of each token before the first difference.
      changed: reward of each token that differs.
      batch_size: rows per forward pass.

    Raises:
      FileNotFoundError: if the folder is no run.
      ValueError: if the tokenizer is another one.
    """
    own, params = load_run(setup, path, "rewrites.path")
    tokenizer, length = own.task.tokenizer, setup.config.rollout.completion_length
    mode_of(setup, tokenizer, "", f"the model {path}", texts=False)
    score = make_token_rollouts(
        own.model,
        lambda log_probs, tokens, keys: jnp.argmax(log_probs, axis=-1),
        completion_length=length,
        chunk=setup.config.score.chunk,
    )
    read = jax.jit(lambda params, batch: score(params, batch, jnp.zeros(len(batch.tokens), jnp.uint32))[0])

    def judge(judged: Rows) -> Verdict:
        mask, ids = np.asarray(judged.rollout.completion_mask), sampled_ids(judged)
        tokens = np.asarray(judged.rollout.batch.tokens)[:, -mask.shape[1] :]
        questions = [
            tokenizer.encode(fill(template, prompt=prompt, completion=text), bos=True)
            for prompt, text in zip(judge_prompts(judged.records), judged.completions, strict=True)
        ]
        rows = lay_out(list(zip(questions, ids, strict=True)), tokenizer, length)
        preferred = in_batches(own, read, params, rows, batch_size)
        agrees = np.where(mask, preferred == tokens, True).all(axis=1)
        rewards = np.asarray(rewrite_rewards(tokens, preferred, mask, kept=kept, changed=changed))
        return Verdict(None, rewards, components={"unchanged": agrees.astype(np.float32)})

    return judge
