"""Tunix's DPO and SFT trainers on the work of experiments.bench.updates: PYTHON tunix_updates.py WORK.json -> JSON.

PYTHON has `google-tunix==0.1.7`. The model is its own Qwen3, randomly initialised. Completions are padded to the
longest of the whole work: another width would be another program.
"""

import json
import logging
import os
import sys
import time

os.environ.setdefault("JAX_PLATFORMS", "cpu")
logging.disable(logging.WARNING)

import jax  # noqa: E402
import numpy as np  # noqa: E402
import optax  # noqa: E402
from flax import nnx  # noqa: E402
from tunix.models.qwen3 import model as qwen3  # noqa: E402
from tunix.sft import peft_trainer, utils  # noqa: E402
from tunix.sft.dpo import dpo_trainer  # noqa: E402

work = json.load(open(sys.argv[1]))
sizes, records, longest = work["sizes"], work["records"], work["completion_length"]
mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("fsdp", "tp"))
config = qwen3.ModelConfig(
    num_layers=sizes["layers"], vocab_size=sizes["vocab"], embed_dim=sizes["d"], hidden_dim=sizes["ff"],
    num_heads=sizes["heads"], head_dim=sizes["head_dim"], num_kv_heads=sizes["kv"], rope_theta=1_000_000,
    norm_eps=1e-6, use_tied_embedding=True,
)  # fmt: skip
with mesh:
    model = qwen3.Qwen3(config, rngs=nnx.Rngs(0))


def padded(rows):
    """(ids int32 [B, longest], mask) of completions."""
    mask = np.arange(longest) < np.array([[len(row)] for row in rows])
    ids = np.zeros(mask.shape, np.int32)
    ids[mask] = np.concatenate(rows)
    return ids, mask


def pairs(step):
    """The input of DPOTrainer."""
    prompts = np.array([prompt for prompt, *_ in step], np.int32)
    (chosen, chosen_mask), (rejected, rejected_mask) = (padded([record[k] for record in step]) for k in (1, 2))
    return dpo_trainer.TrainingInput(
        prompt_ids=prompts, prompt_mask=np.ones(prompts.shape, bool), chosen_ids=chosen, chosen_mask=chosen_mask,
        rejected_ids=rejected, rejected_mask=rejected_mask,
    )  # fmt: skip


def rows(step):
    """The input of PeftTrainer: the mask has the completions only."""
    prompts = np.array([prompt for prompt, *_ in step], np.int32)
    ids, mask = padded([record[1] for record in step])
    return peft_trainer.TrainingInput(
        input_tokens=np.concatenate([prompts, ids], axis=1),
        input_mask=np.concatenate([np.zeros(prompts.shape, bool), mask], axis=1),
    )


def with_attention(given):
    """The loss's mask has completions only; the padding is on the right, where nothing looks at it."""
    real = np.ones(given.input_tokens.shape, bool)
    return {
        "input_tokens": given.input_tokens,
        "input_mask": given.input_mask,
        "positions": utils.build_positions_from_mask(real),
        "attention_mask": utils.make_causal_attn_mask(real),
    }


class Data:
    """One batch per step; it is asked for the next one when a step was sent off, hence the wait for its params."""

    def __init__(self, make):
        self.make, self.trainer, self.stamps = make, None, []

    def __iter__(self):
        for step in [*records, records[-1]]:
            jax.block_until_ready(jax.tree.leaves(nnx.state(self.trainer.model, nnx.Param)))
            self.stamps.append(time.perf_counter())
            yield self.make(step)


number = len(records) + 1  # the last one's end is not seen
with mesh:
    if work["method"] == "dpo":
        reference = qwen3.Qwen3(config, rngs=nnx.Rngs(0))
        settings = dpo_trainer.DPOTrainingConfig(eval_every_n_steps=10**9, max_steps=number, beta=0.1)
        data = Data(pairs)
        data.trainer = dpo_trainer.DPOTrainer(model, reference, optax.adamw(1e-5), settings)
    else:
        data = Data(rows)
        settings = peft_trainer.TrainingConfig(eval_every_n_steps=10**9, max_steps=number)
        data.trainer = peft_trainer.PeftTrainer(model, optax.adamw(1e-5), settings)
        data.trainer = data.trainer.with_gen_model_input_fn(with_attention)
    data.trainer.train(data)
seconds = [after - before for before, after in zip(data.stamps, data.stamps[1:], strict=False)]
print(json.dumps({"name": "tunix", "step_s": seconds}))
