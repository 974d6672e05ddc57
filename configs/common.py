"""The fields that every run has, with their defaults. A config file starts from `base()` and changes some.

Every field is set here, so that a misspelt one on the command line is an error and not a silent new field. The meaning
of each is in configs/fields.py.
"""

import pathlib
from collections.abc import Collection

from ml_collections import ConfigDict


def optimizer(**changes) -> ConfigDict:
    """An optimizer as experiments.parts.training.make_optimizer takes it; decay_steps=0 keeps the rate constant."""
    fields = dict(
        learning_rate=1e-3,
        rule=dict(fn="adamw"),
        warmup_steps=0,
        hold_steps=0,
        decay="cosine",
        decay_steps=0,
        final_fraction=1.0,
        b1=0.9,
        b2=0.999,
        eps=1e-8,
        weight_decay=0.0,
        decayed="all",
    )
    return ConfigDict(_known(fields, changes))


def transformer(**changes) -> ConfigDict:
    """A model from scratch; the task's tokenizer gives the vocabulary.

    Args:
      **changes: fields that differ from the defaults. checkpoint: a llama2.c file to start from, which then gives the
        sizes. path: a Hugging Face folder (or hf://ORG/NAME@REVISION), which gives sizes, weights and the tokenizer.
        ignore_fields: fields of its config.json that are not known here, and change nothing that it computes. chat:
        prompts are messages in that folder's chat template. template: the template's own arguments. lora: adapters that
        are trained instead of the weights; rank 0 is none.
    """
    fields = dict(
        checkpoint="",
        path="",
        ignore_fields=(),
        chat=False,
        template=dict(),  # as in dict(enable_thinking=False)
        lora=dict(rank=0, alpha=16.0, targets="layers/(q|k|v|o|gate|up|down)", variant="lora"),
        embed_dim=128,
        num_layers=4,
        num_heads=4,
        num_kv_heads=2,
        head_dim=32,
        mlp_dim=256,
        num_experts=0,  # 0: a dense MLP
        experts_per_token=0,
        qk_norm=False,  # of queries and keys, as in Qwen3; a mixture without it cannot be exported
        replay_routes=False,  # scoring and training run the experts that ran in sampling (R3)
        tied_head=True,
        rope_theta=10_000.0,
        norm_eps=1e-5,
        dtype="float32",
        param_dtype="float32",
        remat="none",
        attention="auto",  # the TPU's kernel where there is a TPU
    )
    return ConfigDict(_known(fields, changes))


def checkpoint(every: int) -> dict:
    """The fields of rl_jax.training.checkpoint.Checkpointer.

    The newest `keep` checkpoints are kept, the multiples of keep_every steps (0: none), and the keep_best best ones by
    a metric of metrics.jsonl with best_mode "max" or "min". best_metric "": eval/pass@1, or what the evaluations have.

    Args:
      every: steps between saves.
    """
    return dict(every=every, keep=2, keep_every=0, keep_best=0, best_metric="", best_mode="max")


def train(*, steps: int, optimizer: ConfigDict, **more) -> dict:
    """The fields of every program that trains. more: how a program splits its data: batch_size, epochs, minibatches."""
    return dict(
        steps=steps,
        **more,
        micro_batches=1,
        max_grad_norm=1.0,
        optimizer=optimizer,
        max_nonfinite_in_a_row=5,
    )


SAMPLING = dict(  # the model's own distribution
    temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, repetition_penalty=1.0, stop_strings=()
)
WANDB = dict(project="", mode="offline")  # none
# Which prompts come next (rl_jax.experience.sources), and whether something is remembered of each.
PROMPTS = dict(prompts=dict(fn="shuffled"), memory=dict(on=False, successes=0, last=False))
DATA_DIR = "~/.cache/rl_jax/tfds"  # where datasets are prepared, once
# Folders of real data sets: next to the clone, and the one of experiments.tools.fetch_data.
DATA, FETCHED = "../shared/data", "~/.cache/rl_jax/data"


def real(path: str) -> str:
    """A file or folder of the real data sets: the one under DATA, unless only FETCHED has it."""
    fetched = pathlib.Path(FETCHED).expanduser() / path
    return str(fetched) if fetched.exists() and not pathlib.Path(DATA, path).exists() else f"{DATA}/{path}"


def rollout() -> dict:
    """config.rollout: how completions are sampled."""
    return dict(
        completion_length=32,
        window=0,  # tokens of an answer per step, the rest in later steps (experiments.parts.windows); 0: all
        prompt_buckets=(16, 32, 64),
        long_prompts="stop",  # over the widest bucket: "stop", "drop" or "cut" (their ends are kept)
        **SAMPLING,
        engine=dict(name="lockstep", slots=0, url="", model="", timeout_s=600.0, sync=dict(fn="")),
        weights="",  # "int8", "fp8": of the sampler only (experiments.parts.quantized)
        cache="",
        mesh="",  # another layout of the weights for sampling (experiments.parts.rollout_mesh)
        devices="shared",  # "shared" with the training, or "separate"
    )


def reward() -> dict:
    """config.reward: what scores them."""
    return dict(
        function="",  # "module:function", (prompt, completion, info) -> {"reward": ...}; "": the task's own
        terms=dict(),  # name -> dict(fn=..., weight=1.0); none: the function above alone
        compose=dict(fn="weighted_sum"),
        num_workers=2,
        time_limit_s=1.0,
        memory_gb=4.0,
        failure_reward=0.0,
        all_failed="stop",
    )


def algorithm() -> dict:
    """config.algorithm: from rewards to advantages, weights and the loss; what a file of configs/methods sets."""
    return dict(
        mask_truncated=False,  # DAPO's overlong filtering: no loss on rows that were cut off
        # From rewards to advantages and weights (rl_jax.credit).
        shaping=dict(fn="unchanged"),
        reward_kl=dict(fn="k1"),
        reward_kl_coef=0.0,
        advantage=dict(fn="group_relative"),
        behavior_weight=dict(fn="none"),  # from the sampler's log-probs to the trainer's
        token_weight=dict(fn="none"),
        row_selection=dict(fn=""),  # rows that are trained on, drawn again by their rewards; "": all
        token_selection=dict(fn=""),  # tokens that a surrogate treats differently; "": none
        entropy_weight=dict(fn=""),  # weight of the entropy bonus on each token; "": entropy_coef
        # Estimators with a state (rl_jax.core.trackers), by their use in the loop; "" is none.
        trackers={
            place: dict(fn="") for place in ("reward_scale", "baseline", "reward_kl", "loss_kl", "entropy")
        },
        # The loss (rl_jax.grpo).
        surrogate=dict(fn="clipped_surrogate", clip_low=0.2, clip_high=0.2),
        kl=dict(fn="k3"),
        kl_coef=0.0,
        # PAPO: a KL to the policy that reads a corrupted prompt (experiments.parts.perception); all 0: none.
        perception=dict(kl_coef=0.0, share=0.6, entropy_coef=0.0, corrupted_entropy_coef=0.0),
        mirror_step=0.0,  # MDPO: step size t of a full KL to the step's start, over t; 0: none
        measure_kl=True,  # False: no forward of the reference and no kl/ metric, unless a term needs it
        entropy_coef=0.0,
        aggregate=dict(fn="token_mean"),
        entropy_aggregate=dict(fn=""),  # of the entropy bonus; "": the same
        ptx=dict(coef=0.0, split="sft_train"),  # InstructGPT's pretraining term on the task's demonstrations
        # Sampling and scoring inside the nucleus of the policy of some steps ago (experiments.parts.action_mask).
        action_mask=dict(top_p=1.0, min_tokens=1, every=5),  # top_p 1: off
        # The reference policy: its start and its moves (experiments.parts.references).
        reference_soup=dict(init_from="", weight=0.5),
        reference_schedule=dict(fn="fixed"),
    )


def base(name: str) -> ConfigDict:
    """A whole run: an SFT warm start, then token-mean GRPO without a KL term, evaluated on held-out prompts.

    GRPO as in the paper (arXiv 2402.03300) is configs.methods.grpo. name: the default workdir's name.
    """
    return ConfigDict(
        dict(
            program="grpo",  # experiments.PROGRAM trains it
            name=name,
            seed=0,
            mesh="",  # "data:2,fsdp:2,tensor:2", axes in rl_jax/core/axis_table.py; "" is one device
            task=dict(name=name),
            model=transformer(),
            init_from="",  # workdir of a finished run whose params to start from; "" runs the SFT below, if any
            rollout=rollout(),
            score=dict(chunk=32, micro_batches=1),
            packing=dict(mode="padded", row_length=0, min_rows=1),  # see experiments.parts.packers
            reward=reward(),
            judge=dict(),  # learned judges: name -> dict(fn=..., weight=1.0) of experiments.parts.judges
            sft=dict(
                steps=0,  # 0: no warm start
                loss=dict(fn=""),  # "": -log p of the demonstrations
                prompts=dict(fn=""),  # of rl_jax.experience.sources; "": shuffled
                batch_size=128,
                micro_batches=1,
                max_grad_norm=1.0,
                optimizer=optimizer(),
                max_nonfinite_in_a_row=5,
                eval_every=100,
                stop_at=1.1,  # stop at this pass@1; above 1: never
            ),
            algorithm=algorithm(),
            # Coefficients that change: name -> dict(field=, fn=, ...) (experiments.parts.schedules).
            schedules=dict(),
            # Rows that the policy did not sample: name -> dict(fn=, ...) (experiments.parts.foreign_rows).
            foreign=dict(),
            train=train(steps=100, epochs=1, minibatches=1, optimizer=optimizer(learning_rate=1e-4)),
            sample=dict(
                prompts_per_step=32,
                group_size=8,
                dynamic_sampling=dict(max_batches=1),  # 1: off
                references=0,  # samples of the reference per prompt, for a shaping against their rewards
                **PROMPTS,
            ),
            eval=dict(
                every=50,
                num_prompts=256,
                samples_per_prompt=1,
                batch_size=256,
                completion_length=0,  # 0: that of rollout
                **SAMPLING,
            ),
            checkpoint=checkpoint(every=50),
            log=dict(
                progress=True,
                tensorboard=True,
                wandb=dict(WANDB),
                sample_rows=16,
                print_completions=0,
                profile_steps=(),  # none
                peak_flops=0.0,  # by the kind of device
            ),
        )
    )


def set_updates(config: ConfigDict, *, minibatches: int = 1, epochs: int = 1) -> None:
    """minibatches x epochs updates a batch of rollouts, in place of one, and the schedule, which counts them, as long.

    With one update every ratio is 1, so that no clip does anything.
    """
    config.train.update(minibatches=minibatches, epochs=epochs)
    config.train.optimizer.warmup_steps *= minibatches * epochs
    config.train.optimizer.decay_steps *= minibatches * epochs


def smoke(config: ConfigDict) -> ConfigDict:
    """The same program at the smallest size: a minute of compilation and a few steps, for CI."""
    config.sft.steps = min(config.sft.steps, 20)
    config.sft.eval_every = 20
    config.train.steps = 4
    config.sample.prompts_per_step = 8
    config.sample.group_size = 4
    config.eval.update(every=2, num_prompts=16, samples_per_prompt=1, batch_size=16)
    config.checkpoint.every = 2
    return config


def parse(arg: str | None, known: tuple[str, ...]) -> set[str]:
    """The comma-separated words after the config's colon.

    Raises:
      ValueError: if a word is unknown.
    """
    words = set(filter(None, (arg or "").split(",")))
    if words - set(known):
        raise ValueError(f"config argument {sorted(words - set(known))} is none of {', '.join(known)}")
    return words


def one_of(words: set[str], names: Collection[str], default: str) -> str:
    """The word that is one of `names`, or the default. Raises ValueError if several are: a set has no order."""
    found = sorted(words & set(names))
    if len(found) > 1:
        raise ValueError(f"choose at most one of {', '.join(found)}")
    return found[0] if found else default


def _known(fields: dict, changes: dict) -> dict:
    if set(changes) - set(fields):
        raise ValueError(f"unknown fields {sorted(set(changes) - set(fields))}; the fields are {', '.join(fields)}")
    return fields | changes
