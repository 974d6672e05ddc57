"""DPO (arXiv 2305.18290) from a JSONL file of preferences, and the fields of every preference run.

    python -m experiments.dpo --config=configs/preferences/given.py --config.data.path=PAIRS.jsonl --workdir=runs/dpo

Without a path the preferences are generated: sums, right and wrong (rl_jax.preferences.generated). A line of a file is
{"prompt": ..., "chosen": ..., "rejected": ...}; other names of columns are given as
--config.data.columns="{'prompt': 'question', 'chosen': 'better', 'rejected': 'worse'}". The model is a small one from
scratch over characters (--config.task.alphabet= over bytes, for texts that are not ASCII), first fine-tuned on the
chosen answers (config.sft); --config.model.checkpoint with --config.task.tokenizer_path takes one of llama2.c.
Arguments: `pretrained` takes a Hugging Face model, --config.model.path=FOLDER, as it is: no fine-tuning first, small
steps. `lora` trains adapters on it. `smoke`: seconds.
"""

from ml_collections import ConfigDict

from configs import common, sweeps


def get_config(arg: str | None = None):
    words = common.parse(arg, ("pretrained", "lora", "smoke"))
    config = base("preferences")
    config.sft.update(steps=200, batch_size=32)
    if words & {"pretrained", "lora"}:
        pretrained(config, learning_rate=5e-6 if "lora" in words else 5e-7)
    if "lora" in words:
        config.model.lora.update(rank=16, alpha=32.0)
    return smoke(config) if "smoke" in words else config


def base(name: str) -> ConfigDict:
    """A whole run: SFT on the chosen side, if any, then steps on preferences, evaluated on held-out ones."""
    config = common.base(name)
    config.program = "dpo"
    del config["sample"], config["schedules"], config["foreign"]
    # A tokenizer for texts without a verifier: from a llama2.c file, or of characters; a model's folder has its own.
    config.task = dict(name="preferences", tokenizer_path="", alphabet=PRINTABLE)
    # The keywords of rl_jax.preferences.load. kind: "pairs", "rankings" or "labels" (for reward models "steps", too).
    config.data = dict(
        name="given",
        path="",  # a JSONL file; "": generated preferences of the same kind
        kind="pairs",
        columns=dict(),  # field -> its name in the file
        sort_by_reward=False,
        contradictions="stop",  # pairs that say the opposite of each other: "stop" or "keep"
        test_share=0.1,  # of the prompts
        skip_bad_records=False,
        data_dir=common.DATA_DIR,
    )
    # Prompts over the largest bucket: "refuse", "left" (cut there) or "drop". Equal responses: "refuse" or "drop".
    config.encode = dict(truncate="refuse", identical="refuse")
    config.algorithm = dpo()
    config.train = train(steps=100)
    config.eval.update(every=50, num_prompts=256, batch_size=64)  # of the test split: prompts with their responses
    return config


def pretrained(config: ConfigDict, *, learning_rate: float) -> None:
    """A Hugging Face folder as it is, in `config`: texts of its length, small steps, bfloat16 on an accelerator."""
    config.model = common.transformer(path="FOLDER", dtype="auto")
    config.rollout.update(completion_length=512, prompt_buckets=(512,))
    config.sft.update(steps=0)
    config.sft.optimizer.learning_rate = 1e-5
    config.train.update(micro_batches=8)
    config.train.optimizer = common.optimizer(learning_rate=learning_rate, warmup_steps=10)


# The characters of an ASCII text.
PRINTABLE = "\n" + "".join(map(chr, range(32, 127)))


def train(*, steps: int, **changes) -> ConfigDict:
    """config.train of preferences: steps over batches of prompts."""
    fields = common.train(steps=steps, batch_size=32, optimizer=common.optimizer(learning_rate=1e-4))
    # data_epochs: number of passes over the records, instead of `steps`; 0: `steps` decides. reference_cache: folder
    # of the reference's log-probs, by a hash of the model and the data; "": WORKDIR/reference.
    return ConfigDict(fields | dict(data_epochs=0, reference_cache="") | changes)


def dpo(**more) -> ConfigDict:
    """One field per slot of rl_jax.dpo.Objective, for DPO. more: further fields, for a program of its own."""
    return ConfigDict(
        dict(
            responses=2,  # per prompt: 2 is pairs, 1 labelled responses (each side of a pair is one), more is rankings
            brevity=0.0,  # cost per token, if a method needs other_rewards (MODPO) and the records have none
            # Instructions before the prompt, with which the reference gives token rewards (T-REG).
            contrast=dict(better="", worse=""),
            token_weight=dict(fn="uniform"),
            reference=dict(ref=1.0),  # "ref", "prev" -> its share; an empty one needs no reference
            length_power=0.0,
            score_map=dict(fn="identity"),
            beta=0.1,
            scale=dict(fn="constant"),
            offset=dict(fn="none"),
            compare=dict(fn="pairs"),
            link=dict(fn="logistic"),
            weight=dict(fn="uniform"),
            regularizer=dict(fn="chosen_nll"),
            regularizer_coef=0.0,
            batch_stats=dict(fn="none"),  # statistics of the whole batch, before it is split
            **more,
        )
    )


def smoke(config: ConfigDict) -> ConfigDict:
    """The same program at the smallest size: a few steps, for CI."""
    config.sft.steps = min(config.sft.steps, 10)
    config.sft.update(batch_size=8, eval_every=10)
    config.train.update(steps=4, data_epochs=0, batch_size=8, micro_batches=1)
    config.eval.update(every=2, num_prompts=16, batch_size=16)
    config.checkpoint.every = 2
    return config


def sweep_seed(arg: str | None = None):
    """Test seeds."""
    return sweeps.seeds(arg)


def sweep_lr(arg: str | None = None):
    """The learning rate of the preference steps."""
    return sweeps.grid("train.optimizer.learning_rate", sweeps.numbers(arg, (3e-5, 1e-4, 3e-4)))


def sweep_beta(arg: str | None = None):
    """The strength of the KL to the reference."""
    return sweeps.grid("algorithm.beta", sweeps.numbers(arg, (0.01, 0.03, 0.1, 0.3)))


def space_lr():
    """The range of learning rates for experiments.sweep.tune."""
    return {"train.optimizer.learning_rate": ("log_uniform", 1e-5, 1e-3)}


def space_beta():
    """The range of beta."""
    return {"algorithm.beta": ("log_uniform", 3e-3, 1.0)}
