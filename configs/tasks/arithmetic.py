"""Token-mean GRPO without a KL term on generated arithmetic: SFT on imperfect demonstrations, then RL.

    make train                                                   # or, the same:
    python -m experiments.grpo --config=configs/tasks/arithmetic.py --workdir=runs/arithmetic

"3+5-2+7=" -> "8=6=13": running totals, the last one is the answer. 60 % of the demonstrations stop too early, so the
model that imitates them is right on two of five held-out problems (0.41 to 0.45); rewards for right answers teach it to
continue to the end (0.90 to 0.94). A laptop with 2 cores needs a few minutes. GRPO with the
paper's settings (arXiv 2402.03300: k3 with weight .04, means of row means) is configs/methods/grpo.py. Arguments after
a colon: `smoke` (seconds, for CI), `shuffled` (the wrong-reward control, see configs/papers/spurious_rewards.py).
"""

from configs import common, sweeps


def get_config(arg: str | None = None):
    words = common.parse(arg, ("smoke", "shuffled"))
    config = common.base("arithmetic")
    config.task = dict(
        name="arithmetic",
        # (3, 4) has few sums of 3 numbers: they are half of the test problems but 7 % of the training problems.
        num_operands=(4, 4),
        digits=1,
        operators="+-",
        num_train=40_000,
        num_test=1_000,
        worked=True,
        unfinished_share=0.6,
        data_dir=common.DATA_DIR,
    )
    config.model = common.transformer(
        embed_dim=64, num_layers=3, num_heads=4, num_kv_heads=4, head_dim=16, mlp_dim=256, tied_head=False
    )
    config.rollout.update(completion_length=12, prompt_buckets=(9,))
    config.sft.update(steps=1_500, batch_size=128, eval_every=250)
    config.sft.optimizer = common.optimizer(
        learning_rate=3e-3, warmup_steps=20, decay_steps=1_480, final_fraction=0.05
    )
    # "+" alone has so few sums that the model memorises them instead of learning to add: 0.72 on train, 0.52 held out.
    config.train.update(steps=200)
    config.sample.update(prompts_per_step=32, group_size=8)
    config.train.optimizer = common.optimizer(
        learning_rate=3e-4, warmup_steps=10, decay_steps=190, final_fraction=0.1
    )
    config.eval.update(every=50, num_prompts=1_000, batch_size=500)
    config.checkpoint.every = 50
    if "shuffled" in words:
        config.algorithm.shaping = dict(fn="shuffled")
    return common.smoke(config) if "smoke" in words else config


def sweep_seed(arg: str | None = None):
    """Test seeds."""
    return sweeps.seeds(arg)


def sweep_lr(arg: str | None = None):
    """The peak learning rate of GRPO."""
    return sweeps.grid("train.optimizer.learning_rate", sweeps.numbers(arg, (1e-4, 3e-4, 1e-3)))


def sweep_clip(arg: str | None = None):
    """The upper bound of the ratio, from PPO's to beyond DAPO's; the lower bound stays."""
    return sweeps.grid("algorithm.surrogate.clip_high", sweeps.numbers(arg, (0.1, 0.2, 0.28, 0.4)))


def sweep_entropy(arg: str | None = None):
    """The coefficient of the entropy bonus."""
    return sweeps.grid("algorithm.entropy_coef", sweeps.numbers(arg, (0.0, 0.001, 0.01)))


def sweep_kl(arg: str | None = None):
    """The coefficient of the KL term in the loss."""
    return sweeps.grid("algorithm.kl_coef", sweeps.numbers(arg, (0.0, 0.01, 0.04, 0.1)))


def sweep_method(arg: str | None = None):
    """Published methods, each as in its file (configs/methods), on this task."""
    known = sweeps.words(arg, ("grpo", "dr_grpo", "dapo", "rloo", "gspo", "cispo"))
    return sweeps.grid("config", (f"configs/methods/{name}.py" for name in known))


def space_lr():
    """The range of learning rates for experiments.sweep.tune."""
    return {"train.optimizer.learning_rate": ("log_uniform", 3e-5, 3e-3)}


def space_kl():
    """The range of the KL term's coefficient."""
    return {"algorithm.kl_coef": ("log_uniform", 1e-3, 1.0)}
