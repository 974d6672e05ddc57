"""Reward models (arXiv 1706.03741, 2204.05862) on generated sums or on real preferences.

    python -m experiments.reward_model --config=configs/preferences/reward_models.py --workdir=runs/reward_model

Bradley-Terry on pairs of sums, right and wrong, evaluated on held-out ones. Arguments choose other data. Generated:
`steps` for a process reward model, `labels` for an outcome verifier, `rankings` of four sums. Real: `hh` (harmless
pairs, also evaluated on LLMBar's five subsets), `pandalm`, `bbmistake` (steps), `gsm8k` (labelled model solutions);
their files are those of `python -m experiments.tools.fetch_data NAME`. Arguments for the method: `soft` (the fractions
of annotators as labels, for generated pairs and pandalm), `margin` (for generated pairs), `center`, `k_wise` and
`plackett_luce` (for rankings, or gsm8k's four solutions each), `hl_gauss`, `mse`, `implicit` (no head), `ensemble`
(five heads). The model for generated data is a small one of characters, which `scratch` also takes for real data; for
real data it is otherwise the real stories260K. `given` reads your own file, --config.data.path=PAIRS.jsonl with the
fields of configs/preferences/given.py; `pretrained` takes a Hugging Face model, --config.model.path=FOLDER, with steps
that suit one, and `lora` trains adapters on it. `smoke` (seconds, for CI).
"""

from ml_collections import ConfigDict

from configs import common
from configs.preferences import given

REAL = ("hh", "pandalm", "bbmistake", "gsm8k")
WORDS = (
    *("smoke", "scratch", "given", "pretrained", "lora", "steps", "labels", "rankings", *REAL),
    *("soft", "margin", "center", "k_wise", "plackett_luce", "hl_gauss", "mse", "implicit", "ensemble"),
)


def reward_model(**changes) -> ConfigDict:
    """config.algorithm of a reward model: one field per slot of rl_jax.reward_model.Objective."""
    fields = dict(
        # What the loss reads: "response" (a head at its last token), "steps" (a head at the last token of each step) or
        # "log_ratio" (no head: an implicit reward model); "user": configs/preferences/users.py.
        reads="response",
        responses=2,  # per prompt: 1 labelled responses, 2 pairs (a ranking's best and worst), more: rankings
        loss=dict(fn="bradley_terry"),  # rl_jax.losses.reward_model
        regularizer=dict(fn="centered"),
        regularizer_coef=0.0,
        head=dict(layers=1, activation="silu"),  # "none", "tanh" or "silu" between layers (rl_jax.models.heads)
        members=1,  # heads of an ensemble over one trunk
        combine=dict(fn="mean"),  # rl_jax.credit.ensembles, when the reward model is used
        standardize=False,  # each member by its mean and std on the held-out responses, before they are combined
        support=dict(low=0.0, high=1.0, num_bins=51, padding=3),  # read by hl_gauss only
        attribute_weights=(),  # weight of each attribute in the reward, for the loss `attributes`
        aggregate=dict(fn="minimum"),  # rl_jax.credit.process_rewards: from a solution's steps to its score
        beta=0.05,  # for an implicit reward
        # Secrets of RLHF II (configs/preferences/secrets2.py): contrasts of two views of a pair, and MetaRM.
        views=dict(coef=0.0, temperature=0.05, rate=0.1),
        meta=dict(step_size=0.0, path=""),
        traces=dict(coef=0.0, start="\n", observed="", answers=True),  # Themis (configs/preferences/themis.py)
        users=dict(latent=16, hidden=64, kl_coef=0.01, noise=1e-3),  # for reads="user"
    )
    unknown = sorted(set(changes) - set(fields))
    if unknown:
        raise ValueError(f"unknown fields {unknown}; the fields are {', '.join(fields)}")
    return ConfigDict(fields | changes)


def base(name: str) -> ConfigDict:
    """A whole run on preference data: configs.preferences.given.base with a reward model's algorithm."""
    config = given.base(name)
    config.program = "reward_model"
    config.algorithm = reward_model()
    config.encode.separator = "\n"  # after each step of a solution
    optimizer = common.optimizer(learning_rate=1e-3, warmup_steps=10)
    config.train = common.train(steps=120, batch_size=32, optimizer=optimizer)
    # Further data to evaluate on at the end, by name: keywords of rl_jax.preferences.load.
    config.benchmarks = dict(names=(), sets=dict())
    return config


def get_config(arg: str | None = None):
    words = common.parse(arg, WORDS)
    named = sorted(words & {"steps", "labels", "rankings", "given", *REAL})
    if len(named) > 1:
        raise ValueError(f"choose one data set, not {len(named)}: {', '.join(named)}")
    config = base("reward_model")
    config.model = common.transformer(embed_dim=64, num_layers=3, num_heads=4, num_kv_heads=4, head_dim=16)
    config.encode.update(truncate="left", identical="drop")
    config.eval.update(every=50, num_prompts=512, batch_size=32)
    config.checkpoint.every = 50
    if "given" not in words:
        (_real if words & set(REAL) else _generated)(config, words)
    if words & {"pretrained", "lora"}:
        given.pretrained(config, learning_rate=1e-4 if "lora" in words else 1e-5)
    if "lora" in words:
        config.model.lora.update(rank=16, alpha=32.0)
    if words & {"steps", "bbmistake"}:
        config.algorithm.update(reads="steps", responses=1, loss=dict(fn="step_cross_entropy"))
    if words & {"labels", "gsm8k"}:
        config.algorithm.update(responses=1, loss=dict(fn="outcome"))
    if "rankings" in words:
        config.algorithm.update(responses=4, loss=dict(fn="plackett_luce"))
    return smoke(method(config, words)) if "smoke" in words else method(config, words)


def _generated(config: ConfigDict, words: set[str]) -> None:
    kind = next(iter(words & {"steps", "labels", "rankings"}), "pairs")
    annotators = 5 if "soft" in words and kind == "pairs" else 0
    config.data = dict(name="generated", kind=kind, annotators=annotators, data_dir=common.DATA_DIR)
    config.rollout.update(completion_length=48 if kind == "steps" else 24, prompt_buckets=(24,))


def _real(config: ConfigDict, words: set[str]) -> None:
    if "scratch" not in words:
        config.model = common.transformer(checkpoint=common.real("models/stories260K.bin"))
        config.task.tokenizer_path = common.real("models/tok512.bin")
    if "bbmistake" in words:
        config.data = published("bbmistake", "prm")
        config.rollout.update(completion_length=256, prompt_buckets=(64,))  # most mistakes come late
    elif "gsm8k" in words:
        config.data = published("gsm8k_solutions", "math/gsm8k_test_model_solutions.jsonl.gz", kind="labels")
        config.rollout.update(completion_length=192, prompt_buckets=(64,))  # the end of the question
    else:
        config.rollout.update(completion_length=64, prompt_buckets=(96,))
        config.data = published("hh", "prefs/hh_harmless_test.jsonl.gz")
        if "pandalm" in words:
            config.data = published("pandalm", "prefs/pandalm_human_testset.json.gz")
        llmbar = dict(name="llmbar", path=common.real("prefs"), skip_bad_records=True)
        config.benchmarks = dict(names=("llmbar",), sets=dict(llmbar=llmbar))


def published(name: str, path: str, **more) -> dict:
    """The keywords of rl_jax.preferences.load for a real data file."""
    return dict(name=name, path=common.real(path), skip_bad_records=True, data_dir=common.DATA_DIR, **more)


def method(config: ConfigDict, words: set[str]) -> ConfigDict:
    """The config with the loss that the words name."""
    if "soft" in words:
        config.algorithm.loss = dict(fn="bradley_terry_soft")
    if "margin" in words:
        config.algorithm.loss = dict(fn="bradley_terry_margin")
    if "center" in words:
        config.algorithm.regularizer_coef = 0.01
    for name in words & {"k_wise", "plackett_luce", "mse", "hl_gauss"}:
        config.algorithm.loss = dict(fn=name)
    if "gsm8k" in words and words & {"k_wise", "plackett_luce"}:
        config.algorithm.responses = 4
        config.data.kind = "rankings"
    if "implicit" in words:
        config.algorithm.update(reads="log_ratio", loss=dict(fn="implicit_outcome"), responses=1)
    if "ensemble" in words:
        config.algorithm.members = 5
    return config


def smoke(config: ConfigDict) -> ConfigDict:
    """The same program at the smallest size: a few steps, for CI."""
    config.train.update(steps=4, batch_size=8, micro_batches=1)
    config.rollout.update(completion_length=32, prompt_buckets=(32,))
    config.eval.update(every=2, num_prompts=16, batch_size=16)
    config.checkpoint.every = 2
    return config
