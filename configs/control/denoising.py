"""Diffusion and flow models trained by reward: a chain of denoising steps is an episode (docs/pages/denoising.md).

    python -m experiments.control.ppo --config=configs/control/denoising.py:ddpo
    python -m experiments.control.ppo --config=configs/control/denoising.py:grpo_guard --config.num_seeds=4
    python -m experiments.control.ppo --config=configs/control/denoising.py:b2_diffurl --config.env.margin=1.5

The pretrained model is the exact one of a ring of Gaussians (rl_jax.envs.worlds.denoising). Arguments: `ddpo` (arXiv
2305.13301; the default), `dppo` (2409.00588: PPO with a critic), `flow_grpo` (2505.05470), `grpo_guard` (2510.22319),
`b2_diffurl` (2503.11240), `d3po` (2311.13231: pairs, no reward model), `seppo` (2410.05255: winners beside samples of
checkpoints; rl_jax.control.semi_policy says what of it could be read); `drakes` (2410.13643: masked diffusion of a
string, by gradients through its steps, rl_jax.envs.worlds.unmasking; `drakes_oracle`: 20 letters and a learned reward,
judged by a held-out one and by the truth), `id_aligner` (2404.15449: gradients of the reward
through the prediction of x_0 at a late step). `smoke` (seconds, for CI).
rl_jax.control.denoising has the equations. Departures: a network of two layers in the plane in place of LoRA on Stable
Diffusion; learning rates and clips are of this size.
"""

from configs import common, sweeps
from configs.control import control_common

STEPS = 10
_UPDATER = dict(fn="make_denoising_update", loss="clipped", clip=0.1)
_DIFFUSION = dict(process="diffusion", eta=1.0)
_FLOW = dict(process="flow", eta=0.7)

METHODS = {
    # Per-prompt mean and std of this update and the last ones, as DDPO's tracker.
    "ddpo": (_DIFFUSION, dict(updater=_UPDATER | dict(history=4))),
    # The same chain for PPO with a critic; the paid step is the last, so nothing is discounted.
    "dppo": (_DIFFUSION, dict(advantage=dict(discount=1.0, lam=0.95), surrogate=dict(clip_low=0.1, clip_high=0.1))),
    "flow_grpo": (_FLOW, dict(updater=_UPDATER | dict(ref_coef=0.01))),
    # The normalised ratio lies within std_t of 1: its clip is as small as the steps of its model.
    "grpo_guard": (_FLOW, dict(updater=_UPDATER | dict(loss="guarded", clip=0.02, ref_coef=0.01))),
    # The last 7 of 10 steps first (14 of 20 in the paper), 4 branches, and the best and worst of each group.
    "b2_diffurl": (
        _DIFFUSION,
        dict(updater=_UPDATER | dict(branches=4, first_steps=7, growth=30, history=9, keep=(0.5, -0.5))),
    ),
    "d3po": (_DIFFUSION, dict(updater=_UPDATER | dict(loss="preferred", branches=2, beta=1.0, clip=0.5))),
    # Winners of 4 samples (of 2 in its data), a checkpoint after 5 updates of 8 steps (30 steps there).
    "seppo": (
        _DIFFUSION,
        dict(
            updater=dict(
                fn="make_semi_policy_update",
                beta=1.0,
                anchor="sign",
                every=5,
                checkpoints=7,
                winners=1024,
                candidates=4,
            )
        ),
    ),
}
# Gradients through the chain itself: no score function and no critic.
PATHWISE = {
    # ID-Aligner: the prediction of x_0 at one of the last 4 steps, whose cosine with the prompt is the identity's.
    "id_aligner": dict(
        env=dict(
            name="probes/denoise",
            process="diffusion",
            eta=0.1,
            steps=STEPS,
            reward="cosine",
            jump=4,
            judged=dict(jump=0),
        ),
        sample=dict(num_envs=128, num_steps=STEPS),
        network=dict(kind="denoiser", hidden=(64, 64), distribution="unit_gaussian"),
        algorithm=dict(updater=dict(fn="make_pathwise_update"), entropy_coef=0.0),
        train=dict(total_steps=100 * 128 * STEPS, epochs=1, minibatches=1, max_grad_norm=1.0),
        eval=dict(num_episodes=512, max_steps=STEPS, greedy=True),
    ),
    "drakes": dict(
        # Evaluated on hard samples: the relaxed chain pays less KL than its letters do.
        env=dict(
            name="probes/unmask", letters=4, length=4, steps=4, tau=1.0, alpha=0.02, through=0, judged=dict(tau=0.0)
        ),
        sample=dict(num_envs=64, num_steps=4),
        network=dict(hidden=(64, 64), distribution="unit_gaussian"),
        algorithm=dict(updater=dict(fn="make_pathwise_update"), entropy_coef=0.0),
        train=dict(total_steps=40 * 64 * 4, epochs=1, minibatches=1, max_grad_norm=1.0),
        eval=dict(num_episodes=512, max_steps=4, greedy=True),
    ),
}

# DRAKES' evaluation: trained on an oracle, judged by it, by one of other strings, and by the truth, without the KL.
PATHWISE["drakes_oracle"] = PATHWISE["drakes"] | dict(
    env=dict(
        name="probes/unmask",
        letters=20,  # as amino acids
        length=6,
        steps=6,
        tau=1.0,
        alpha=0.02,
        through=0,
        reward="trained",
        samples=4000,
        noise=0.3,
        ridge=0.3,
        judged=dict(tau=0.0),
        also={name: dict(reward=name, alpha=0.0) for name in ("trained", "held_out", "true")},
    ),
    sample=dict(num_envs=64, num_steps=6),
    train=dict(total_steps=60 * 64 * 6, epochs=1, minibatches=1, max_grad_norm=1.0),
    eval=dict(num_episodes=512, max_steps=6, greedy=True),
)

RATES = {"drakes": 1e-2, "drakes_oracle": 1e-2, "seppo": 3e-3}


def _points(world: dict, algorithm: dict) -> dict:
    """The fields of a method on chains of points."""
    return dict(
        env=dict(name="probes/denoise", steps=STEPS, reward="half", margin=1.2) | world,
        sample=dict(num_envs=128, num_steps=STEPS),
        network=dict(kind="denoiser", hidden=(64, 64), distribution="unit_gaussian"),
        algorithm=dict(entropy_coef=0.0, **algorithm),
        train=dict(total_steps=40 * 128 * STEPS, epochs=2, minibatches=4, max_grad_norm=1.0),
        eval=dict(num_episodes=512, max_steps=STEPS),
    )


def get_config(arg: str | None = None):
    words = common.parse(arg, (*METHODS, *PATHWISE, "smoke"))
    names = sorted(words & {*METHODS, *PATHWISE})
    if len(names) > 1:
        raise ValueError(f"choose at most one method, not {', '.join(names)}")
    name = names[0] if names else "ddpo"
    config = control_common.base(f"control_denoising_{name}")
    config.update(num_seeds=4, log_every=10)
    with config.unlocked():
        config.update(PATHWISE[name] if name in PATHWISE else _points(*METHODS[name]))
    config.train.optimizer.update(learning_rate=RATES.get(name, 2e-3), final_fraction=0.1)
    config.checkpoint.every = 20
    config.record.num_steps = config.sample.num_steps
    if "smoke" in words:
        config.update(num_seeds=2, log_every=2)
        config.sample.num_envs = 32
        config.train.total_steps = 4 * 32 * config.sample.num_steps
        config.network.hidden = (8,)
        config.eval.num_episodes = 4
        config.checkpoint.every = 2
        config.log.update(progress=False, tensorboard=False)
    return config


def sweep_seed(arg: str | None = None):
    """Test seeds; each is a run of its own, regardless of config.num_seeds."""
    return sweeps.product(sweeps.seeds(arg), sweeps.grid("num_seeds", (1,)))


def sweep_method(arg: str | None = None):
    """The methods."""
    return sweeps.grid("argument", sweeps.words(arg, (*METHODS, *PATHWISE)))
