"""Actors, a policy worker and a trainer at the same time, by V-trace: SRL, arXiv 2306.16688; IMPALA, arXiv 1802.01561.

    python -m experiments.control.asynchronous --config=configs/control/asynchronous.py:shuttle
    python -m experiments.control.asynchronous --config=configs/control/asynchronous.py:cartpole      # gymnasium's
    python -m experiments.control.asynchronous --config=configs/control/asynchronous.py:shuttle,inline,processes
    python -m experiments.control.asynchronous --config=configs/control/asynchronous.py:shuttle,free

Words: an environment, `shuttle` (the default, no library), `cartpole`, `pendulum` (gymnasium); `inline` (each actor has
the policy) instead of a policy worker; `processes` instead of threads; `free`, the clock decides which weights act;
`smoke` (seconds, for CI).
"""

from ml_collections import ConfigDict

from configs import common
from configs.common import WANDB, checkpoint

# V-trace's advantages with PPO's clip (at 0.2). With `reinforce`, one pass, CartPole often falls again: see the page.
CLIPPED = dict(
    sample=dict(num_steps=32),
    flow=dict(delay=16),
    algorithm=dict(advantage=dict(lam=0.95), surrogate=dict(fn="clipped_surrogate")),
    train=dict(epochs=4, minibatches=4, optimizer=dict(learning_rate=1e-3, final_fraction=0.0)),
)
ENVIRONMENTS = {
    "shuttle": (),
    "cartpole": (
        CLIPPED,
        dict(
            env=dict(name="gymnasium/CartPole-v1"),
            train=dict(total_steps=400_000),
            eval=dict(num_episodes=10, max_steps=500, every=50),
        ),
    ),
    "pendulum": (
        CLIPPED,
        dict(
            env=dict(name="gymnasium/Pendulum-v1"),
            algorithm=dict(advantage=dict(discount=0.95), entropy_coef=0.0),
            train=dict(total_steps=300_000, epochs=10),
            eval=dict(num_episodes=10, max_steps=200, every=100),
        ),
    ),
}


def base(name: str) -> ConfigDict:
    """A whole run. name: the default workdir's name."""
    return ConfigDict(
        dict(
            program="control.asynchronous",
            name=name,
            seed=0,
            env=dict(name="host/shuttle"),  # and its keywords (rl_jax.envs.host_worlds.load_host_env)
            sample=dict(num_envs=16, num_steps=16),  # all environments together; steps of each per update
            actors=dict(
                count=2,
                policies=1,
                kind="thread",
                inference="remote",
                block=4,  # environments that are always stepped by the same worker; changes the draws
                ring=2,
                timeout_s=120.0,
                restarts=3,
            ),
            flow=dict(schedule="counted", delay=8, ahead=1, timeout_s=600.0),
            network=dict(
                kind="mlp",
                hidden=(64, 64),
                activation="tanh",
                channels=16,
                actor_features=0,
                distribution="tanh_gaussian",
            ),
            algorithm=dict(
                advantage=dict(fn="vtrace", discount=0.99, lam=1.0, clip_rho=1.0, clip_c=1.0, clip_pg_rho=1.0),
                whiten=True,
                surrogate=dict(fn="reinforce"),
                kl=dict(fn="ratio_k3"),
                kl_coef=0.0,
                entropy_coef=0.01,
                value_loss=dict(fn="mse"),
                support=dict(low=-1.0, high=1.0, num_bins=51, padding=3),
                value_coef=0.5,
            ),
            train=dict(
                total_steps=60_000,
                epochs=1,
                minibatches=1,
                max_grad_norm=0.5,
                max_nonfinite_in_a_row=100,
                optimizer=dict(learning_rate=2e-3, final_fraction=0.1, b1=0.9, b2=0.999, eps=1e-5),
            ),
            eval=dict(every=50, num_episodes=32, max_steps=50),
            checkpoint=checkpoint(every=100),
            log=dict(progress=True, tensorboard=True, wandb=dict(WANDB)),
        )
    )


def get_config(arg: str | None = None):
    words = common.parse(arg, (*ENVIRONMENTS, "inline", "processes", "free", "smoke"))
    places = sorted(words & set(ENVIRONMENTS))
    if len(places) > 1:
        raise ValueError(f"choose at most one environment, not {', '.join(places)}")
    place = places[0] if places else "shuttle"
    config = base("_".join(["control_async", place, *sorted(words - {place, "smoke"})]))
    for fields in ENVIRONMENTS[place]:
        config.update(fields)
    if "inline" in words:
        config.actors.inference = "inline"
    if "processes" in words:
        config.actors.kind = "process"
    if "free" in words:
        config.flow.schedule = "free"
    if "smoke" in words:
        config.update(sample=dict(num_envs=8, num_steps=8), network=dict(hidden=(16,)))
        config.actors.block = 2
        config.train.total_steps = 6 * 64
        config.flow.delay = 5
        config.eval.update(num_episodes=2, max_steps=10, every=3)
        config.checkpoint.every = 2
        config.log.update(progress=False, tensorboard=False)
    return config
