"""The fields of a training from replay. The defaults are those of DQN on CartPole. See experiments.control.replay."""

from ml_collections import ConfigDict

from configs.common import WANDB, checkpoint


def base(name: str) -> ConfigDict:
    """A whole run. name: the default workdir's name."""
    return ConfigDict(
        dict(
            program="control.replay",  # experiments.PROGRAM trains it
            name=name,
            seed=0,
            num_seeds=1,  # trained side by side in one program
            sweep=(),  # (("algorithm.tau", (0.005, 0.01)),), as in configs/control/control_common.py
            runs=(),
            mesh="",  # "seeds:2": runs over devices; "envs:8": each run's envs and replay over devices
            spread="jit",
            group=1,  # runs of one device trained in lockstep (vmap); 1: one after the other
            env=dict(name="gymnax/CartPole-v1", features=(), frame_stack=1, at_reset="repeat"),
            sample=dict(num_envs=1, num_steps=4),  # of one run, per update
            replay=dict(
                capacity=50_000,  # steps of all environments; the oldest are overwritten
                warmup=1_000,  # random steps before the first update, not counted in train.total_steps
                batch_size=128,  # draws per gradient step
                kept=0,  # steps of the untrained policy, never overwritten; half of each batch is of them
            ),
            network=dict(
                kind="mlp",
                hidden=(64, 64),
                activation="relu",
                channels=16,
                members=1,  # critics
                dueling=False,  # dqn, discrete_sac: a head for the state and one for the actions
                layer_norm=False,
                enumerated=False,  # one network on every combined action, instead of a head for each
            ),
            algorithm=dict(
                method=dict(fn="dqn", double=True),  # rl_jax.control.replay_methods
                head=dict(fn="scalar", delta=1.0),  # what a critic's outputs mean (rl_jax.losses.value_heads)
                discount=0.99,
                n_step=1,
                tau=1.0,  # share of the newest params in the slow copy, every target_every gradient steps
                target_every=100,
                # Probability of a random action: from initial to final over this fraction of the updates.
                exploration=dict(initial=1.0, final=0.05, fraction=0.2),
                # td3: deviation of the noise in acting and in the target's action, in halves of the range.
                noise=dict(acting=0.1, target=0.2, target_clip=0.5),
                # Draws by the size of the last error to this power; 0 is uniform.
                priority=dict(exponent=0.0, correction=0.4, floor=1e-3),
            ),
            train=dict(
                total_steps=100_000,  # over all envs of one run
                gradient_steps=1,  # of the critics, per update
                actor_every=1,  # gradient steps of the critics per one of the actor
                max_grad_norm=10.0,
                optimizer=dict(learning_rate=1e-3, final_fraction=1.0, b1=0.9, b2=0.999, eps=1e-8),
                actor_optimizer=dict(learning_rate=1e-3, final_fraction=1.0, b1=0.9, b2=0.999, eps=1e-8),
            ),
            log_every=1000,  # updates per row of metrics and per call of the compiled program
            eval=dict(num_episodes=16, max_steps=500, greedy=True),  # per row of metrics; 0 episodes: none
            checkpoint=checkpoint(every=5000),  # updates, a multiple of log_every
            log=dict(progress=True, tensorboard=True, wandb=dict(WANDB)),
            max_nonfinite_in_a_row=1000,
        )
    )
