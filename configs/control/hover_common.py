"""The quadrotor of configs/control/replay.py, and TD3 that learns to fly it: arXiv 2311.13081."""

# A planar quadrotor stands in for the Crazyflie in space. One seed with networks of 32 units had -90 after 8,000
# steps and 145 of 200 at the end, in the air for 97 of 100 steps.
# Two seconds of its time are 50 steps; the actor sees the first 14 numbers, the critic all 24.
HOVER = dict(
    env=dict(name="probes/hover"),
    num_seeds=3,
    sample=dict(num_envs=8, num_steps=4),
    replay=dict(capacity=65_536, warmup=1024, batch_size=128),
    train=dict(total_steps=64_000, gradient_steps=8),
    log_every=100,
    checkpoint=dict(every=500),
    eval=dict(num_episodes=32, max_steps=100),
)
# The weights, their factors and limits are those of the public code; there they change every 100,000 of 300,000 steps.
LEARN_TO_FLY = dict(
    network=dict(members=2, actor_features=14),
    algorithm=dict(
        method=dict(fn="td3"),
        reward_weights=dict(
            fn="curriculum",
            first=(5.0, 5.0, 0.01, 0.01),
            factors=(1.2, 1.0, 1.4, 1.4),
            limits=(40.0, 5.0, 1.0, 1.0),
            every=667,
        ),
    ),
    train=dict(actor_every=2),
)
