"""The fields of a training in environments. The defaults are those of PPO on CartPole. See experiments.control.ppo."""

from ml_collections import ConfigDict

from configs.common import WANDB, checkpoint


def base(name: str) -> ConfigDict:
    """A whole run. name: the default workdir's name."""
    return ConfigDict(
        dict(
            program="control.ppo",  # experiments.PROGRAM trains it
            name=name,
            seed=0,
            num_seeds=1,  # trained side by side in one program
            # (("algorithm.entropy_coef", (0.0, 0.01)),) trains every value with every seed; must not change shapes.
            sweep=(),
            # ((seed, (("algorithm.entropy_coef", 0.01),)), ...): these runs, as if each ran alone, instead of
            # num_seeds and sweep. experiments.sweep --vmap writes it.
            runs=(),
            mesh="",  # "seeds:2": runs over devices; "envs:8": each run's envs over devices; "" is one device
            spread="jit",  # "jit" over the mesh, or "pmap"
            group=1,  # runs of one device trained in lockstep (vmap); 1: one after the other
            # Its name and keywords (rl_jax.envs.load), and its observations (rl_jax.envs.wrappers): features, the
            # indices that are kept, () is all; frame_stack, the observations per stack.
            env=dict(name="gymnax/CartPole-v1", features=(), frame_stack=1, at_reset="repeat"),
            sample=dict(num_envs=4, num_steps=128),  # of one run, per update
            network=dict(
                kind="mlp",  # or "gru", "transformer" (rl_jax.models.agents.memory), a memory after the hidden layers
                width=64,  # of a memory
                context=32,  # steps that the transformer attends to
                heads=4,
                slow_rate=0.01,  # of the copy of the encoder of windows that the actor reads
                layers=1,
                hidden=(64, 64),
                activation="tanh",
                channels=16,
                actor_features=0,  # the actor reads only the first features; 0 is all
                distribution="tanh_gaussian",  # or "beta": continuous actions (models.agents.distributions)
            ),
            algorithm=dict(
                # What an update does with its batch (rl_jax.control.make_...).
                updater=dict(fn="make_update"),
                # From rewards and values to advantages and returns (rl_jax.advantages.steps).
                advantage=dict(fn="gae", discount=0.99, lam=0.95),
                whiten=True,
                # The loss (rl_jax.losses).
                surrogate=dict(fn="clipped_surrogate", clip_low=0.2, clip_high=0.2),
                kl=dict(fn="ratio_k3"),  # to the policy at the start of the update
                kl_coef=0.0,
                kl_control=dict(fn=""),  # rl_jax.core.trackers: adaptive_kl, annealed_kl; "" is none
                # Other rewards for the collected steps (rl_jax.control.relabelling: by_terms, by_potential, by_machine,
                # by_lagrange, by_novelty, ...; or "module:function"); "" keeps the environment's.
                relabel=dict(fn=""),
                auxiliary=dict(fn=""),  # a further loss on the actor's layers (rl_jax.control.auxiliary); "" is none
                entropy_coef=0.01,
                value_loss=dict(fn="clipped", value_clip=0.2),
                support=dict(low=-1.0, high=1.0, num_bins=51, padding=3),  # read by the categorical losses only
                value_coef=0.5,
                actor_lag=1,
                normalize_observations=False,
                normalize_rewards=False,
            ),
            train=dict(
                total_steps=500_000,  # over all envs of one run
                epochs=4,
                minibatches=4,
                max_grad_norm=0.5,
                optimizer=dict(learning_rate=2.5e-4, final_fraction=0.0, b1=0.9, b2=0.999, eps=1e-5),
            ),
            log_every=50,  # updates per row of metrics and per call of the compiled program
            eval=dict(num_episodes=16, max_steps=500, greedy=False),  # per row of metrics; 0 episodes: none
            # Transitions of the policy at each checkpoint, for experiments.control.offline; "": none.
            record=dict(path="", num_envs=16, num_steps=250),
            checkpoint=checkpoint(every=500),  # updates, a multiple of log_every
            log=dict(progress=True, tensorboard=True, wandb=dict(WANDB)),
            max_nonfinite_in_a_row=1000,  # stop once so many gradients in a row were not finite in every run
        )
    )


def smoke(config: ConfigDict) -> None:
    """Makes a run a matter of seconds, for CI: two runs of eight updates, the rows of metrics every four."""
    config.update(num_seeds=2, log_every=4)
    config.train.total_steps = 8 * config.sample.num_envs * config.sample.num_steps
    config.eval.update(num_episodes=2, max_steps=20)
    config.checkpoint.every = 4
    config.log.update(progress=False, tensorboard=False)
