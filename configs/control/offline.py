"""Offline reinforcement learning on data of mixed quality, generated where they are used.

    python -m experiments.control.offline --config=configs/control/offline.py:pointmass,iql
    python -m experiments.control.offline --config=configs/control/offline.py:cartpole,cql

Arguments: an environment, `pointmass` (the default), `neorl2` (the same with delay and wind, and data of one middling
policy), `gridworld`, `junction` (a grid whose place is not seen), `cartpole`, `aim`, `matching`, `hidden` (pointmass
without its velocities), `salesman` (shortest tours); a method, `bc`, `filtered_bc`, `awr`, `iql` (the default), `xql`,
`dual_chi2`, `dual_tv`, `recoil` (imitation, without rewards), `cql`, `bq_nco` (a transformer over the cities left, on
`salesman`), for continuous actions `td3_bc`, `a2pr`; decision transformers, `dt`, `mo_dt`, for continuous actions
`region_dt` (mo_dt that says first in which region it will act); `oppo`; `histories`, IQL on codes of what was seen so
far, `cql_histories`, CQL on them; tasks one after the other, on `pointmass` with goals that are not observed, `oer`,
`random_replay` (the same, but what is kept of a task is drawn at random), `psec` (a base, skills that are adapters of
it, a new task by their composition), or with an inertia of its own, `hypercrl` (a model of the dynamics, planned with);
tasks at once, told apart by the episodes lived in them, `t2mir` (the expert's actions are cloned), `t2mir_ad`
(learners' histories are); `imagined` (more data, made by a wrong model of the world, a half of each batch); what is
hidden of the data, `ss_orl` (actions of 90 % of the episodes, filled in by an inverse model), `labelled_only` (the
same, left out), `preferred` (rewards, learned from pairs of segments), `pearl` (rewards, learned from preferences of a
task with another goal); `fqe` (the policy's value by fitted Q, from the data alone); `online` (the second half of the
updates with steps of its own, one for each); `smoke` (seconds, for CI).
"""

from configs import common, sweeps
from configs.control import control_common

# Every tenth row is the expert's, most others are random: cloning gives their average.
MIXED = dict(behaviours=("expert", "poor", "random"), shares=(0.1, 0.3, 0.6))
ENVIRONMENTS = {
    "pointmass": dict(env=dict(name="probes/pointmass"), dataset=dict(num_steps=200), eval=dict(max_steps=20)),
    # arXiv 2503.19267: actions are delayed, an external factor is not observed, the data are of one middling policy.
    "neorl2": dict(
        env=dict(name="probes/pointmass", delay=2, wind=0.02),
        dataset=dict(num_steps=200, behaviours=("medium",), shares=(1.0,)),
        eval=dict(max_steps=20),
    ),
    "gridworld": dict(env=dict(name="probes/gridworld"), dataset=dict(num_steps=200), eval=dict(max_steps=50)),
    # arXiv 2310.20663 has CQL on a gridworld that is not fully seen: no behaviour remembers the sign, a history does.
    "junction": dict(
        env=dict(name="probes/junction", length=3),
        dataset=dict(num_steps=200, behaviours=("medium",), shares=(1.0,)),
        eval=dict(max_steps=30),
    ),
    "cartpole": dict(env=dict(name="gymnax/CartPole-v1"), dataset=dict(num_steps=400), eval=dict(max_steps=500)),
    "aim": dict(env=dict(name="probes/aim"), dataset=dict(num_steps=40), eval=dict(max_steps=1)),
    "matching": dict(env=dict(name="probes/matching"), dataset=dict(num_steps=40), eval=dict(max_steps=1)),
    # arXiv 2301.03313: shortest tours of random cities; there a million of 100 cities.
    "salesman": dict(
        env=dict(name="probes/salesman", cities=7),
        dataset=dict(num_envs=2000, num_steps=6, behaviours=("expert",), shares=(1.0,)),
        eval=dict(max_steps=20),
    ),
    # Places without velocities, also for the behaviours: what matters has to be read from the last observations.
    "hidden": dict(
        env=dict(name="probes/pointmass", features=(0, 1)), dataset=dict(num_steps=200), eval=dict(max_steps=20)
    ),
}
# The published constants of each method; what is in units of the return (beta, temperature) is for these rewards.
_TD3 = dict(alpha=2.5, discount=0.99, noise=0.2, noise_clip=0.5, delay=2, target_rate=0.005)
_WEIGHTS = dict(beta=3.0, max_weight=100.0, discount=0.99, target_rate=0.005)
_CQL = dict(fn="cql", weight=5.0, num_actions=10, entropy_coef=0.1, discount=0.99, target_rate=0.005)
METHODS = {
    "bc": dict(fn="bc"),
    "filtered_bc": dict(fn="filtered_bc", share=0.1),
    "awr": dict(fn="awr", beta=3.0, max_weight=20.0),
    "iql": dict(fn="iql", expectile=0.7, **_WEIGHTS),
    "xql": dict(fn="xql", temperature=1.0, max_clip=7.0, delta=20.0, **_WEIGHTS),
    "dual_chi2": dict(fn="dual", divergence="chi2", lam=0.7, **_WEIGHTS),
    "dual_tv": dict(fn="dual", divergence="tv", lam=0.7, **_WEIGHTS),
    # arXiv 2302.08560: imitation of the expert's rows, the first source; the code has reward 2 and discount .99.
    "recoil": dict(
        fn="recoil",
        expert=0,
        reward=0.2,
        temperature=1.0,
        max_clip=7.0,
        beta=3.0,
        max_weight=100.0,
        discount=0.9,
        target_rate=0.02,
    ),
    "cql": _CQL,
    "td3_bc": dict(fn="td3_bc", **_TD3),
    "a2pr": dict(fn="a2pr", **_TD3),
    "dt": dict(fn="dt", scale=10.0, target=1.0),
    # One seed asked for the expert's return has 96 % of it after 500 updates (share of the actions: .79).
    "mo_dt": dict(fn="mo_dt", scale=10.0, target=1.0, weight=-1.0),
    # arXiv 2308.16379 names regions in its abstract; the grid and region_coef are choices made here.
    "region_dt": dict(fn="region_dt", scale=10.0, target=1.0, weight=-1.0, region_coef=0.1),
    "oer": dict(fn="oer", replay_coef=1.0, select=True, **_TD3),
    "random_replay": dict(fn="oer", replay_coef=1.0, select=False, **_TD3),
    "hypercrl": dict(fn="hypercrl", beta=0.05),
    "psec": dict(fn="psec", base=dict(fn="iql", expectile=0.7, **_WEIGHTS)),
    # arXiv 2506.05426, its decision-pretrained form and the one that imitates histories; the constants are the public
    # code's for PointRobot.
    "t2mir": dict(fn="t2mir", even_coef=0.01, task_coef=0.01, target_rate=0.005),
    "t2mir_ad": dict(fn="t2mir_ad", even_coef=0.1, task_coef=0.01, target_rate=0.005),
    # arXiv 2310.20663: J = (|z - z'| - |r - r'| - gamma W2(P, P'))^2 of codes z of histories beside the base's loss.
    # With cql as the base there, on a gridworld; gamma = 1 there, here distances are bounded. The formula is known from
    # quotations only (rl_jax.losses.bisimulation).
    "histories": dict(
        fn="histories", base=dict(fn="iql", expectile=0.7, **_WEIGHTS), coef=0.1, model_coef=1.0, discount=0.9
    ),
    "cql_histories": dict(fn="histories", base=_CQL, coef=0.1, model_coef=1.0, discount=0.9),
    "oppo": dict(fn="oppo", triplet_coef=0.1, norm_coef=0.1, margin=1.0),
    "bq_nco": dict(fn="bq_nco"),
}
# arXiv 2305.13804: the tasks, and how much of each is kept.
GOALS = dict(field="goal", values=((-0.8, 0.0), (0.8, 0.0), (0.0, 0.8)), kept=200, horizon=20)
# arXiv 2009.11997: the dynamics differ, and the planner is CEM.
INERTIAS = dict(field="inertia", values=(0.0, 0.5, 0.8))
# arXiv 2502.05932: the base, two skills, and a task that asks for both at once.
SKILLS = dict(field="goal", values=((0.0, 0.0), (0.8, 0.0), (0.0, 0.8), (0.8, 0.8)))
# Goals that nothing but the rewards shows, spread evenly over a square (the R2 sequence); the last are not trained on.
_SPREAD = tuple(tuple(round(1.6 * (i * step % 1.0) - 0.8, 2) for step in (0.754878, 0.569840)) for i in range(1, 26))
HIDDEN = dict(field="goal", values=_SPREAD[:20], held_out=_SPREAD[20:])
CONTINUAL = {
    "t2mir": HIDDEN,
    "t2mir_ad": HIDDEN,
    "oer": GOALS,
    "random_replay": GOALS,
    "hypercrl": INERTIAS,
    "psec": SKILLS,
}
# A soft actor-critic of each task, from its first steps on; there SAC as well.
LEARNER = dict(
    method=dict(fn="cql", weight=0.0, num_actions=1, entropy_coef=0.05, discount=0.9, target_rate=0.02),
    steps=1200,
    random=100,
    every=5,
    batch_size=64,
    learning_rate=3e-3,
)
PLANNER = dict(horizon=5, rounds=3, samples=32, elites=6, std=0.7)
# ImagineBench: real steps, none of them the expert's, and imagined ones of what was not recorded. In place of the
# rollouts of a language model are the expert's in a world whose inertia is wrong.
IMAGINED = dict(field="inertia", value=0.3, behaviours=("expert",), shares=(1.0,), num_envs=20)
# arXiv 2408.08441: first offline, then a step of the environment for each update, in the same data.
ONLINE = dict(after=0.5, every=20, num_envs=4, mixing=-1.0)
SEQUENCE = dict(width=64, layers=2, heads=2, context=10)  # of a decision transformer
HISTORY = dict(code=16, context=10)
# What is hidden of the data: actions of 90 % of the episodes (arXiv 2210.06518), or all rewards (arXiv 2411.05273).
_LABELS = dict(
    missing="", share=0.1, lowest=0.5, fill=True, updates=1000, learning_rate=1e-3,
    length=5, num_pairs=1000, beta=10.0, members=3, center=True,
)  # fmt: skip
LABELS = {
    "ss_orl": dict(missing="actions"),
    "labelled_only": dict(missing="actions", fill=False),
    "preferred": dict(missing="rewards"),
    # arXiv 2306.03615 (PEARL): the rewards are unknown and nobody labels this task; the labels are those of another
    # goal, moved by a Gromov-Wasserstein coupling of 120 segments of each. The weights of the loss are choices.
    "pearl": dict(
        missing="preferences",
        source=dict(goal=(0.5, -0.5)),  # fields of env in which the source task differs
        segments=120,
        starts=4,
        steps=10,  # few, so that the plan stays soft: with 50 IQL is at 71, 11, 52, with 10 at 76, 40, 70
        sample_coef=0.3,
        entropy_coef=0.1,
        floor=0.0,
    ),
}
# arXiv 2301.03313: also on more cities than those of the data; parts of naver/bq-nco have a city to choose, 2 or more.
TOURS = dict(cities=(7, 10), smallest=2, beam=16)
DISCRETE = ("gridworld", "junction", "cartpole", "matching", "salesman")
CONTINUOUS_METHODS = ("td3_bc", "a2pr", "region_dt", *CONTINUAL)


def base(name: str):
    """A whole run of `control.offline`. name: the default workdir's name."""
    config = control_common.base(name)
    with config.unlocked():
        for group in ("sample", "algorithm", "network", "train", "record"):
            if group in config:
                del config[group]
        config.update(
            program="control.offline",
            num_seeds=3,
            log_every=1000,
            dataset=dict(
                path="",  # transitions of a file or folder; "": of the scripted behaviours
                layout="auto",  # or "rlds", a TFDS folder of episodes; or "episodes", a folder with an npz of each
                episode_length=0,
                last_reward="refuse",
                observation="proprio",
                terms=(),
                behaviours=MIXED["behaviours"],
                shares=MIXED["shares"],
                num_envs=40,
                num_steps=200,
                mixing=(),
                normalize_observations=False,
                returns=(),
                discount=0.99,
            ),
            network=dict(hidden=(64, 64), activation="relu"),
            train=dict(
                total_steps=5000 * 128,  # transitions read: updates times batch_size
                batch_size=128,
                max_grad_norm=float("inf"),
                optimizer=dict(learning_rate=1e-3, b1=0.9, b2=0.999, eps=1e-8),
            ),
        )
    config.eval.update(num_episodes=64, greedy=True)
    config.checkpoint.every = 5000
    return config


def get_config(arg: str | None = None):
    words = common.parse(arg, (*ENVIRONMENTS, *METHODS, *LABELS, "imagined", "fqe", "online", "smoke"))
    labels = sorted(words & set(LABELS))
    places, methods = sorted(words & set(ENVIRONMENTS)), sorted(words & set(METHODS))
    if max(map(len, (places, methods, labels))) > 1:
        named = ", ".join(places + methods + labels)
        raise ValueError(f"choose at most one environment, one method and one word for the labels, not {named}")
    method = (methods or ["iql"])[0]
    place = (places or ["salesman" if method == "bq_nco" else "pointmass"])[0]
    if place in DISCRETE and method in CONTINUOUS_METHODS:
        raise ValueError(f"{method} is for continuous actions, {place} has a finite set: choose iql or cql")
    if method == "bq_nco" and (place != "salesman" or labels or words & {"fqe", "imagined", "online"}):
        raise ValueError("bq_nco imitates shortest tours: it goes with salesman only")
    if place != "pointmass" and method in CONTINUAL:
        raise ValueError(f"{method} has tasks of pointmass, not of {place}: set env and continual in your own file")
    if method in CONTINUAL and (extra := [*labels, *(words & {"fqe", "imagined", "online"})]):
        raise ValueError(f"{method} is of several tasks: leave out {', '.join(extra)}")
    if "pearl" in labels and place != "pointmass":
        raise ValueError(f"pearl's source task is pointmass with another goal, not {place}: set labels in a config")
    imagined = ["imagined"] * ("imagined" in words)
    if imagined and place != "pointmass":
        raise ValueError(f"imagined is for pointmass, whose inertia is wrong in it, not for {place}")
    online = ["online"] * ("online" in words)
    config = base("_".join(["control_offline", place, method, *labels, *imagined, *online]))
    with config.unlocked():
        config.update(ENVIRONMENTS[place])
        config.algorithm = dict(METHODS[method])
        if method in ("dt", "mo_dt", "region_dt"):
            config.sequence = SEQUENCE | (dict(cells=3) if method == "region_dt" else {})
        if method in CONTINUAL:
            config.continual = dict(CONTINUAL[method])
            config.train.total_steps *= len(config.continual["values"])
        if method in ("t2mir", "t2mir_ad"):
            config.sequence = dict(width=64, layers=2, heads=2)
            config.experts = dict(token_experts=6, task_experts=8, chosen=2, pooled=True, contrast_probs=False)
            config.prompt = dict(episodes=2, length=20, rounds=4)
            config.train.batch_size = 32
            config.train.total_steps = 20_000 * 32
            config.eval.num_episodes = 16
        if method == "t2mir_ad":
            config.learner = dict(LEARNER)
            # Published: rows of 4 episodes, evaluations with 4 before the present one, 30 in a row.
            config.prompt = dict(episodes=4, past=4, length=20, rounds=10, by_return=True, consecutive=False)
            config.eval.num_episodes = 4
        if method == "psec":
            config.skills = dict(rank=8, scale=2.0)
        if method == "hypercrl":
            config.hypernetwork = dict(embedding=10, layers=(32, 32))
            config.planner = dict(PLANNER)
            config.dataset.update(behaviours=("random",), shares=(1.0,), num_envs=20, num_steps=20)
            config.eval.num_episodes = 16
        if method == "bq_nco":
            config.sequence = dict(width=64, layers=3, heads=4)
            config.tours = dict(TOURS)
        if method == "oppo":
            config.hindsight = dict(code=16, length=20)
        if place == "junction" and "cql" in method:  # of rewards of 1, the published 5 leaves what the data do most
            (config.algorithm.base if "base" in config.algorithm else config.algorithm).weight = 0.5
        if METHODS[method]["fn"] == "histories":
            config.history = dict(HISTORY)
        if imagined:
            config.imagined = dict(IMAGINED)
            config.dataset.update(behaviours=("poor", "random"), shares=(0.3, 0.7), mixing=(0.5, 0.5))
        if online:
            config.online = dict(ONLINE)
        if "fqe" in words:
            config.ope = dict(updates=2000, learning_rate=1e-3)
        for word in labels:
            config.labels = _LABELS | LABELS[word]
    if "smoke" in words:
        shorten(config)
    return config


def shorten(config) -> None:
    """Makes the run one of seconds, for CI."""
    config.update(num_seeds=2, log_every=4)
    config.train.update(batch_size=16, total_steps=8 * 16)
    config.network.update(hidden=(16,))
    if "sequence" in config:
        config.sequence.update(width=8, layers=1, **(dict(context=4) if "context" in config.sequence else {}))
    if "history" in config:
        config.history.update(code=4, context=4)
    config.dataset.update(num_envs=8, num_steps=20)
    config.eval.update(num_episodes=2, max_steps=20)
    if "tours" in config:
        config.tours.update(cities=(5,), beam=2)
    if "prompt" in config:
        config.prompt.update(episodes=1, rounds=2, **(dict(past=1) if "past" in config.prompt else {}))
    if "learner" in config:
        config.learner.update(steps=80, random=20, batch_size=8)
    if "continual" in config:
        config.continual.update(kept=20, horizon=5) if "kept" in config.continual else None
        config.train.total_steps = 4 * 16 * (1 if "held_out" in config.continual else len(config.continual["values"]))
    if "imagined" in config:
        config.imagined.num_envs = 4
    if "online" in config:
        config.online.update(every=4, num_envs=2)
    if "planner" in config:
        config.planner.update(rounds=1, samples=4, elites=2)
    if "ope" in config:
        config.ope.updates = 4
    if "labels" in config:
        segments = dict(segments=8, starts=2) if "segments" in config.labels else {}
        config.labels.update(updates=4, num_pairs=16, **segments)
    config.checkpoint.every = 4
    config.log.update(progress=False, tensorboard=False)


def sweep_seed(arg: str | None = None):
    """Test seeds; each is a run of its own, regardless of config.num_seeds."""
    return sweeps.product(sweeps.seeds(arg), sweeps.grid("num_seeds", (1,)))


def sweep_method(arg: str | None = None):
    """The methods, in the environment that the config names."""
    return sweeps.grid("argument", sweeps.words(arg, tuple(METHODS)))
