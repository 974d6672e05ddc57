"""Environments of our own for configs/control/environments.py: probes of a part of the training, and problems with
known answers.

See rl_jax.envs.worlds.probes for what each of them is.
"""

ENVIRONMENTS = {}
for _probe in ("matching", "corridor", "aim"):
    ENVIRONMENTS[_probe] = dict(
        env=dict(name=f"probes/{_probe}"),
        num_seeds=4,
        sample=dict(num_envs=16, num_steps=64),
        train=dict(total_steps=200_000 if _probe == "corridor" else 60_000, optimizer=dict(learning_rate=3e-3)),
        eval=dict(max_steps=64),
    )
ENVIRONMENTS["corridor"]["env"]["length"] = 12

# arXiv 1710.06542, 2311.13081: the critic sees what the policy does not, here the noise in the rewards.
ENVIRONMENTS["privileged"] = ENVIRONMENTS["matching"] | dict(
    env=dict(name="probes/privileged", noise=30.0, shown=True),
    network=dict(actor_features=1),
    algorithm=dict(normalize_rewards=True),
)
# arXiv 2504.17838: a reward that is one product, and a policy within the pedals' bounds.
ENVIRONMENTS["drive"] = dict(
    env=dict(name="probes/drive", reward="product"),
    num_seeds=4,
    sample=dict(num_envs=16),
    network=dict(hidden=(32, 32), distribution="beta"),
    algorithm=dict(entropy_coef=0.0, normalize_rewards=True),
    train=dict(total_steps=200_000, minibatches=8, optimizer=dict(learning_rate=1e-3)),
    log_every=10,
    checkpoint=dict(every=50),
    eval=dict(max_steps=200, greedy=True),
)
_STORE = dict(name="probes/inventory", lead_time=2, holding=1.0, penalty=9.0, periods=50)
ENVIRONMENTS["inventory"] = dict(
    env=_STORE,
    num_seeds=3,
    sample=dict(num_envs=64, num_steps=50),
    network=dict(hidden=(32, 32)),
    algorithm=dict(entropy_coef=0.0, normalize_rewards=True),
    train=dict(total_steps=3_200_000, minibatches=8, optimizer=dict(learning_rate=1e-3)),
    eval=dict(num_episodes=256, max_steps=50, greedy=True),
)
# arXiv 2306.11246: the same store, differentiated through.
ENVIRONMENTS["hdpo"] = ENVIRONMENTS["inventory"] | dict(
    algorithm=dict(updater=dict(fn="make_pathwise_update"), entropy_coef=0.0),
    train=dict(
        total_steps=960_000, epochs=1, minibatches=1, max_grad_norm=1.0, optimizer=dict(learning_rate=1e-2)
    ),
)
# Problems with known answers: python -m experiments.tools.known_answers recovering (bidding, tours).
_KNOWN = dict(
    num_seeds=4,
    sample=dict(num_envs=32, num_steps=32),
    algorithm=dict(entropy_coef=0.003),
    train=dict(total_steps=400_000, optimizer=dict(learning_rate=1e-3)),
    log_every=10,
    checkpoint=dict(every=100),
    eval=dict(num_episodes=256, max_steps=32, greedy=True),
)
ENVIRONMENTS["recovering"] = _KNOWN | dict(env=dict(name="probes/recovering"))  # arXiv 2106.14813
# Stand-ins of applications: the best mapping saves 5.709 in the mean of these 32 programs.
ENVIRONMENTS["mapping"] = _KNOWN | dict(env=dict(name="probes/mapping"))  # arXiv 2305.07440
ENVIRONMENTS["passage"] = _KNOWN | dict(  # arXiv 2403.03848
    env=dict(name="probes/passage"),
    network=dict(hidden=(64, 64)),
    algorithm=dict(entropy_coef=0.0, normalize_rewards=True),
    eval=dict(num_episodes=256, max_steps=80, greedy=True),
)
ENVIRONMENTS["bidding"] = _KNOWN | dict(env=dict(name="probes/bidding"))  # arXiv 1701.02490
ENVIRONMENTS["salesman"] = _KNOWN | dict(env=dict(name="probes/salesman", cities=7))  # arXiv 2301.03313
