"""BaseReward: what a reward model is best made of (arXiv 2509.16127), on generated texts.

    r = W f(W_1 h + b_1) + b,   L = -log sigma(r_w - r_l),   algorithm.head: 2 layers with SiLU

    python -m experiments.reward_model --config=configs/preferences/base_reward.py --workdir=runs/base_reward
    python -m experiments.sweep --config=configs/preferences/base_reward.py --sweep=head,seed:3 --workdir=runs/heads
    python -m experiments.sweep --config=configs/preferences/base_reward.py --sweep=source,seed:3 --workdir=runs/sources

The paper compares, on one backbone: heads of 1 to 5 layers without an activation, with tanh and with SiLU (`head`; of 3
layers here); no regularisation with a zero coefficient's, (r_w + r_l)^2 (`regularizer`); and more than ten data sets,
one at a time (`source`: each part of config.data.parts in turn is not trained on; the evaluation is on all,
eval/accuracy/PART). It takes 2 layers with SiLU, no regularisation, a mixture of texts and images, and at the end
several models as one: --config.judge="{'rm': {'fn': 'reward_model', 'path': ('runs/a', 'runs/b')}}" of the policy
programs, or --config.best_of_n.proxies=runs/a,runs/b. What was read of it are its abstract and two summaries: the width
of its hidden layers and its length normalisation are not known to us.

Here the parts are sums, moods, and sums on which one annotator voted, who is wrong at times. Your own data:
--config.data.parts="{'mine': {'name': 'jsonl', 'path': 'PAIRS.jsonl'}, ...}". Argument: `smoke` (seconds, for CI).

With models of 2 layers of 32 units and 200 steps, one seed, 300 held-out pairs, moods are learned and sums are not
(.43 to .58): .68 on all, .71 without sums, .64 without votes, and .49 without moods. Heads of 1 and 2 layers do not
differ there (.68 to .69): a comparison of heads needs a task that the model learns in part.
"""

from configs import common, sweeps
from configs.preferences import reward_models

PARTS = dict(
    sums=dict(name="generated", world="sums", num_prompts=1_500),
    moods=dict(name="generated", world="moods", num_prompts=1_500),
    votes=dict(name="generated", world="sums", num_prompts=1_500, annotators=1, seed=1),
)


def get_config(arg: str | None = None):
    words = common.parse(arg, ("smoke",))
    config = reward_models.get_config(None)
    config.name = "base_reward"
    config.data = dict(name="mixed", parts=PARTS, leave_out="", data_dir=common.DATA_DIR)
    config.rollout.update(completion_length=72, prompt_buckets=(40,))
    config.algorithm.head.layers = 2
    config.train.steps = 300
    if "smoke" in words:
        reward_models.smoke(config)
        config.rollout.update(completion_length=72, prompt_buckets=(40,))
    return config


def sweep_seed(arg: str | None = None):
    """Test seeds."""
    return sweeps.seeds(arg)


def sweep_head(arg: str | None = None):
    """Heads of 1, 2 and 3 layers; those of several without an activation, with tanh and with SiLU."""
    del arg
    linear = [{"algorithm.head.layers": 1, "algorithm.head.activation": "none"}]
    kinds = sweeps.grid("algorithm.head.activation", ("none", "tanh", "silu"))
    return sweeps.chain(linear, sweeps.product(sweeps.grid("algorithm.head.layers", (2, 3)), kinds))


def sweep_source(arg: str | None = None):
    """All parts, and all but each of them; "moods/votes" leaves out only these two in turn."""
    return sweeps.grid("data.leave_out", ("", *sweeps.words(arg, tuple(PARTS))))


def sweep_regularizer(arg: str | None = None):
    """The coefficient of (r_w + r_l)^2."""
    return sweeps.grid("algorithm.regularizer_coef", sweeps.numbers(arg, (0.0, 0.01, 0.1)))
