"""VLA-RL's process reward model: key states of a robot's recorded successes as labels. arXiv 2505.18719.

    p(turn t has reached a key state | what was said and seen so far),   -y log p - (1 - y) log(1 - p)
    y = 1 if the gripper has opened or closed in turn t, or the hand stood still

    python -m experiments.agents --config=configs/agents_papers.py:vla_rl,alone --workdir=runs/vla_rl_alone
    python -m experiments.reward_model --config=configs/preferences/vla_rl.py --workdir=runs/vla_rl_reward
    python -m experiments.ppo --config=configs/agents_papers.py:vla_rl --workdir=runs/vla_rl

It begins as the policy that played them. Departs from the paper: a head with two classes at the last token of what a
turn brought in place of the next token of a vision-language model; the successes are the warm start's own, not
demonstrations; text in place of pictures. `data.still` below 0: only the gripper counts; `data.lead`: how many actions
before a key state count, too. What the policy is paid for them is limited (agent.turn_rewards.most). `smoke`: all three
folders are runs/smoke_...; its first run has no success yet, so failures are read, too.
"""

from configs import agents_worlds, common
from configs.preferences import reward_models

PLAYED = "vla_rl_alone"  # of runs/


def get_config(arg: str | None = None):
    words = common.parse(arg, ("smoke",))
    like = agents_worlds.get_config("gripper")
    config = reward_models.base("vla_rl_reward")
    config.task, config.model = like.task, like.model
    played = f"runs/{'smoke_' if 'smoke' in words else ''}{PLAYED}"
    row = like.rollout.completion_length
    config.rollout.update(completion_length=row, prompt_buckets=like.rollout.prompt_buckets)
    config.data = dict(
        name="milestones", path=played, least=0.5, still=0.0, lead=1, newest=0, test_share=0.1,
        data_dir=common.DATA_DIR,
    )  # fmt: skip
    config.init_from = played
    config.algorithm.update(reads="steps", responses=1, loss=dict(fn="step_cross_entropy"))
    config.train.update(steps=200, batch_size=32)
    config.eval.update(every=50, num_prompts=256, batch_size=32)
    if "smoke" in words:
        config.data.least = 0.0  # a policy of a few steps has no success
        config.train.update(steps=4, batch_size=8)
        config.eval.update(every=2, num_prompts=16, batch_size=16)
        config.checkpoint.every = 2
    return config
