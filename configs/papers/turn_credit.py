"""Credit per turn: does the unbiased return to go of each turn learn a maze of text in fewer updates?

    python -m experiments.ablation turn_credit

A tabular policy over the places of a maze (rl_jax.envs.text.maze), one token a turn; the goal is half as far as there
are turns. All arms have the same optimiser, learning rate and number of episodes; Adam takes scales away.
With a reward at the goal only, a turn's return to go is the episode's return but for a small price, so there is hardly
any noise to take out (.93 to .98 of the updates, 10 seeds). `noisy`: each turn's reward has noise of its own, of which
credit per turn takes out the part before the turn; 10 seeds tell no difference there, either.
"""

from ml_collections import ConfigDict


def get_ablation() -> ConfigDict:
    """log_steps_T: log of the updates until .8 of the episodes succeed, at T turns; .357 less is .7 of the updates."""
    return ConfigDict(
        dict(
            paper="arXiv 2502.01600, 2505.10978; verl issue 7244",
            claim="A leave-one-out return to go per turn learns a maze in at most .7 of the updates of episode credit",
            scaled_down="a table over 16 places, one token a turn; language models in WebShop, ALFWorld",
            study="maze_steps",
            settings=dict(
                arms={
                    name: dict(fn=f"rl_jax.advantages.{path}")
                    for name, path in (
                        ("trajectory", "turns:loop"),
                        ("grpo", "turns:trajectory"),
                        ("per_turn", "turns:turn_return_loo"),
                        ("turn_grpo", "turns:turn_grpo"),
                        ("gigpo", "turn_states:gigpo"),
                    )
                },
                turns=(2, 4, 8),
                size=4,
                price=0.02,
                noise=0.3,
                groups=1,
                group_size=4,
                steps=200,
                learning_rate=0.3,
            ),
            seeds=tuple(range(10)),
            metric="log_steps_8",
            expected=(
                dict(metric="log_steps_2", increasing=("per_turn", "trajectory"), by=0.357),
                dict(metric="log_steps_4", increasing=("per_turn", "trajectory"), by=0.357),
                dict(metric="log_steps_8", increasing=("per_turn", "trajectory"), by=0.357),
                dict(metric="log_steps_8_noisy", increasing=("per_turn", "trajectory"), by=0.357),
                dict(metric="log_steps_8_noisy", increasing=("per_turn", "trajectory"), by=0.0),
            ),
            tried=3,
            smoke=dict(seeds=(0, 1), settings=dict(steps=2)),
        )
    )
