"""Where configs of verifiable rewards start: a small model of characters, generated questions (rl_jax.tasks.toys).

Half of the demonstrations of its warm start are wrong in the way that the reward is about. A config names the kinds of
questions and the terms; with a Hugging Face model and your own prompts the same terms go into configs/task.py.
"""

from ml_collections import ConfigDict

from configs import common


def run(name: str, kinds: tuple[str, ...], terms: dict, *, prompt: int, completion: int) -> ConfigDict:
    """GRPO on generated questions.

    Args:
      name: of the run.
      kinds: of rl_jax.tasks.toy_kinds.
      terms: config.reward.terms.
      prompt: most characters of a prompt.
      completion: most characters of a completion, and room for longer wrong ones.
    """
    config = common.base(name)
    config.task = dict(
        name="toys", kinds=kinds, num_train=2_000, num_test=200, imperfect=0.5, seed=0, data_dir=common.DATA_DIR
    )
    config.model = common.transformer(
        embed_dim=64, num_layers=3, num_heads=4, num_kv_heads=4, head_dim=16, mlp_dim=192, tied_head=False
    )
    config.rollout.update(completion_length=completion, prompt_buckets=(prompt + 1,))  # and its first token
    config.sft.update(steps=600, batch_size=64, eval_every=300)
    config.sft.optimizer = common.optimizer(learning_rate=3e-3, warmup_steps=20, decay_steps=580, final_fraction=0.05)
    config.train.update(steps=100)
    config.sample.update(prompts_per_step=16, group_size=8)
    config.train.optimizer = common.optimizer(learning_rate=3e-4, warmup_steps=5, decay_steps=95, final_fraction=0.1)
    config.eval.update(every=25, num_prompts=200, batch_size=200)
    config.checkpoint.every = 25
    config.reward.terms = terms
    return config
