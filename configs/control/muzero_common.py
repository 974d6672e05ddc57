"""MuZero (arXiv 1911.08265) in configs/control/replay.py, and memory mapping, for which 2305.07440 uses it."""

import math

# With the search of Gumbel MuZero. Values and rewards by the squared error, as in the published board games.
# In the corridor with algorithm.discount=.9 three seeds have 1 after 16,000 steps; with .99, where values of neighbours
# differ by 1 %, one of two seeds had learned it and then forgot it.
MUZERO = dict(
    network=dict(width=32),  # numbers of a latent state
    algorithm=dict(
        # search: "gumbel" or "puct"; simulations: per step; unroll: K, steps of the model in the loss.
        method=dict(fn="muzero", search="gumbel", simulations=16, unroll=3, value_coef=1.0, reward_coef=1.0),
        head=dict(fn="scalar", delta=math.inf),
        n_step=4,
        exploration=dict(initial=0.0, final=0.0, fraction=1.0),  # the search's noise explores
    ),
)
# The best mappings save 5.71 on average (worlds.mapping.best), all at the lowest place 4.77, random actions 3.82.
MAPPING = dict(
    env=dict(name="probes/mapping"),
    num_seeds=3,
    sample=dict(num_envs=16, num_steps=8),
    replay=dict(capacity=32_768, warmup=1024, batch_size=128),
    network=dict(hidden=(128,)),
    algorithm=dict(discount=1.0),
    train=dict(total_steps=128_000, gradient_steps=8),
    log_every=50,
    checkpoint=dict(every=250),
    eval=dict(num_episodes=64, max_steps=8),
)
