"""Other rewards than the environment's: shaped, searched, intrinsic, imitated. One word is an environment and a reward.

    python -m experiments.control.ppo --config=configs/control/rewards.py:potential
    python -m experiments.control.ppo --config=configs/control/rewards.py:machine --config.num_seeds=4
    python -m experiments.control.ppo --config=configs/control/rewards.py:terms --config.algorithm.relabel.keep=1.0

Arguments: `terms` (a weighted sum of named terms; the default), `heron` (ranked terms) and `heron_sum`, `signs`,
`residuals`, `similarity`, `potential`, `machine`, `formula`, `constraint`; exploring `rnd`, `rdd`, `hindsight`,
`byol_hindsight`, `counts`, `contrast`, `annotator`, `ranking`, `novelty`, `taxons`, `serene`; spread over an episode
`revibranch`; learned from how the policy behaves that they train, `barfi`, `barfi_helpful`, `parl`; imitation of an
`expert` run's episodes.jsonl (algorithm.relabel.demos), `gail`, `airl`, `liayn`, `likelihood`, `ads`, `rapl`, `stages`,
`progress`; auxiliary losses `taco`, `temporal`, `clam`, `views`, `robust_views`, `anchored_views`,
`reward_sequence`, `reward_and_state`, `rep_mtl`; starts from `snapshots` of a teacher; `smoke` (seconds, for CI).
docs/pages/control_rewards.md says what each of them is, and rl_jax.control.relabelling has the equations. Episode
metrics and evaluations report the environment's own reward.
"""

from configs import common, sweeps
from configs.control import control_common

_CAR = dict(
    env=dict(name="gymnax/MountainCar-v0"),
    sample=dict(num_envs=16, num_steps=32),
    algorithm=dict(
        advantage=dict(discount=0.99, lam=0.98),
        entropy_coef=0.02,
        normalize_observations=True,
        normalize_rewards=True,
    ),
    train=dict(total_steps=400_000, optimizer=dict(learning_rate=1e-3)),
    eval=dict(num_episodes=64, max_steps=200, greedy=True),
)
_PROBE = dict(
    sample=dict(num_envs=16, num_steps=64),
    network=dict(hidden=(32,)),
    train=dict(total_steps=100_000, optimizer=dict(learning_rate=3e-3)),
    eval=dict(max_steps=64),
)
_ERRANDS = _PROBE | dict(env=dict(name="probes/errands", length=7, shown=True))
_CORRIDOR = _PROBE | dict(env=dict(name="probes/corridor", length=24))
# Height and speed to the right: what a person would write first for the mountain car.
_CAR_TERMS = dict(height=dict(fn="progress", index=0), speed=dict(fn="residual", index=1, target=0.07))

# HERON's ranking for the car: the goal, then speed, of either direction.
_CAR_RANKS = dict(goal=dict(fn="ended"), speed=dict(fn="residual", index=1))  # -v^2 / 2

_PENDULUM = dict(
    env=dict(name="gymnax/Pendulum-v1"),
    sample=dict(num_envs=16),
    algorithm=dict(
        advantage=dict(discount=0.95), entropy_coef=0.05, normalize_rewards=True, normalize_observations=True
    ),
    train=dict(total_steps=400_000, epochs=10, minibatches=16, optimizer=dict(learning_rate=1e-3)),
    eval=dict(num_episodes=64, max_steps=200, greedy=True),
)
_LONG = _PROBE | dict(env=dict(name="probes/corridor", length=40), algorithm=dict(entropy_coef=0.0))
_SCREEN = _PROBE | dict(env=dict(name="probes/television", length=12, channels=8), algorithm=dict(entropy_coef=0.0))
# Episodes of 16 steps, one in each row of a rollout: all stops of the tour in order.
_TOUR = _PROBE | dict(
    env=dict(name="probes/tour", stops=4, gap=2, horizon=16),
    sample=dict(num_envs=32, num_steps=16),
    algorithm=dict(entropy_coef=0.03),
    train=dict(total_steps=200_000, optimizer=dict(learning_rate=3e-3)),
)
_CLUTTERED = _TOUR | dict(env=_TOUR["env"] | dict(distractors=32, level=2.0))
_AUXILIARY = _PROBE | dict(env=dict(name="probes/corridor", length=12))
_PARTNER = _PROBE | dict(
    env=dict(name="probes/partner", frame_stack=16, at_reset="zeros"),
    sample=dict(num_envs=64, num_steps=16),
    network=dict(kind="windows", hidden=(32,), width=32, context=16),
    eval=dict(num_episodes=256, max_steps=16),
)
# Smallest trees of 1 to 18 branchings, 10.19 in the mean. network.kind=transformer reads what was branched on before.
_BRANCHING = _PROBE | dict(
    env=dict(name="probes/branching"),
    sample=dict(num_envs=32, num_steps=64),
    network=dict(hidden=(64,)),
    algorithm=dict(normalize_rewards=True),
    train=dict(total_steps=400_000, optimizer=dict(learning_rate=1e-3)),
    eval=dict(num_episodes=256, max_steps=64, greedy=True),
)
# A square of 16 places, the goal in a corner, and a policy that is a table.
_SQUARE = _PROBE | dict(
    env=dict(name="probes/gridworld"),
    sample=dict(num_envs=16, num_steps=32),
    network=dict(hidden=()),
)


def _two_levels(design: dict, *, entropy_coef=0.05, **fields) -> tuple[dict, dict]:
    """(the fields of a run in the square whose reward is learned, no relabelling)."""
    updater = dict(
        fn="make_bilevel_update",
        design=design,
        outer_rate=0.02,
        outer_start=10,
        window=4,
        l2=0.0,
        # As far a step as BARFI's .0005 with its rewards of 100.
        solver=dict(method="neumann", iterations=5, rate=0.05),
    )
    algorithm = dict(updater=updater | fields, entropy_coef=entropy_coef)
    train = dict(total_steps=100_000, optimizer=dict(learning_rate=0.01))
    return _SQUARE | dict(algorithm=algorithm, train=train), dict(fn="")


_HALF = dict(fn="place")  # the annotator's score: how far right; above a half is good

PLACES = {
    "terms": (_CAR, dict(fn="by_terms", terms_of=_CAR_TERMS, weights=dict(height=10.0, speed=1.0), keep=0.0)),
    # arXiv 2309.02632 (HERON): ranked terms, no weights; `heron_sum` is a weighted sum of the same terms.
    "heron": (
        _CAR,
        dict(fn="by_hierarchy", terms_of=_CAR_RANKS, levels=("goal", "speed"), signs=(1, -1), factor=1.0),
    ),
    "heron_sum": (
        _CAR,
        dict(fn="by_terms", terms_of=_CAR_RANKS, weights=dict(goal=1.0, speed=-1000.0), keep=0.0),
    ),
    # arXiv 2312.09238: the sign of what succeeded and of what came nearer.
    "signs": (
        _CORRIDOR,
        dict(
            fn="by_terms",
            terms_of=dict(sparse=dict(fn="own"), dense=dict(fn="progress", index=24)),
            weights=dict(sparse=1.0, dense=0.1),
            signs=True,
        ),
    ),
    # arXiv 2306.08647: residual terms of MuJoCo MPC with weights, of the cosine and of the speed.
    "residuals": (
        _PENDULUM,
        dict(
            fn="by_terms",
            terms_of=dict(
                upright=dict(fn="residual", index=0, target=1.0),
                still=dict(fn="residual", index=2),
                effort=dict(fn="effort"),
            ),
            weights=dict(upright=5.0, still=0.1, effort=0.001),
        ),
    ),
    # arXiv 2310.12921: one minus half the distance to the goal's embedding; a fixed random map in place of CLIP.
    "similarity": (
        _CAR,
        dict(
            fn="by_terms",
            terms_of=dict(goal=dict(fn="goal_baseline", goal=(0.5, 0.07), baseline=(-0.5, 0.0), alpha=0.5)),
            weights=dict(goal=1.0),
        ),
    ),
    "potential": (_CORRIDOR, dict(fn="by_potential", potential=dict(fn="place"), scale=1.0)),
    # arXiv 2512.23703 (Robo-Dopamine): progress as demonstrations taught it, as the potential. They are those of a run
    # on another one:
    #   ... --config=configs/control/rewards.py:potential --config.env.length=40 --workdir=runs/shown
    #   ... --config=configs/control/rewards.py:progress --config.algorithm.relabel.demos=runs/shown/episodes.jsonl
    # algorithm.relabel.scale=0.0 is the environment's sparse reward alone; `views` takes some of the three predictions.
    # A corridor of 80, a scripted demonstration, 30 updates (30,720 steps): all of four seeds arrive; on the sparse
    # reward none of four, in another run (20 updates, other noise) two of four; with a network that is not fitted none.
    "progress": (_LONG, dict(fn="by_progress", demos="", views=("incremental", "forward", "backward"), scale=1.0)),
    "machine": (_ERRANDS, dict(fn="by_machine", machine=dict(fn="sequence", places=(0, 6), size=7, progress=0.5))),
    # arXiv 2408.08188: the same errand as a formula; `second` is a part that the task contains.
    "formula": (
        _ERRANDS,
        dict(
            fn="by_machine",
            machine=dict(
                fn="formula",
                task="F (a & second)",
                parts=dict(second="F b"),
                places=dict(a=0, b=6),
                size=7,
                progress=0.5,
            ),
        ),
    ),
    # arXiv 2412.07177: arm 1 pays 1 and costs 1; three steps in ten may take it.
    "constraint": (
        _PROBE | dict(env=dict(name="probes/behaviours", count=2), algorithm=dict(entropy_coef=0.1, whiten=False)),
        dict(fn="by_lagrange", costs=dict(toll=dict(fn="action_is", action=1)), limits=dict(toll=0.3), rate=0.02),
    ),
    "rnd": (_LONG, dict(fn="by_distillation", sigma=0.0, coef=1.0)),
    "rdd": (_LONG, dict(fn="by_distillation", sigma=1.0, coef=1.0)),
    "hindsight": (_SCREEN, dict(fn="by_hindsight", hindsight=8, coef=1.0)),
    # arXiv 2211.10515 on bootstrapped latents: b = (f(s), a), |unit(R(b, z)) - unit(f_slow(s'))|^2 + lam L_inv; departs
    # as relabelling.hindsight.by_bootstrap says. `hindsight` has the next observation in place of f_slow(s').
    "byol_hindsight": (_SCREEN, dict(fn="by_bootstrap", hindsight=8, target_rate=0.05, coef=1.0)),
    "counts": (_LONG, dict(fn="by_elliptical", features=0, coef=0.1)),
    # G over the last 16 updates: over one update, 1,024 steps, the bonus would not fall with visits.
    "contrast": (_LONG, dict(fn="by_elliptical", features=16, coef=0.1, memory=16_384)),
    # arXiv 2508.17452 (ReviBranch): a tree's size, spread over its branchings by how much of the gap each closed.
    "revibranch": (_BRANCHING, dict(fn="by_importance", importance=dict(fn="progress", index=30), scale=-10.0)),
    "annotator": (_LONG, dict(fn="by_annotator", annotator=_HALF, kind="retrieval")),
    "ranking": (_LONG, dict(fn="by_annotator", annotator=_HALF, kind="ranking")),
    "novelty": (_LONG, dict(fn="by_archive", keep=1.0, coef=0.1)),
    "taxons": (_LONG, dict(fn="by_archive", keep=1.0, coef=0.1, latent=4)),
    "serene": (_LONG, dict(fn="by_archive", coef=0.1, period=5)),
    # arXiv 2310.19007 (BARFI): a wrong auxiliary reward, for being at place 5 again and again, where r_p + r_aux keeps
    # the policy (updater.outer_rate=0); and a right one, less for each step from the goal.
    "barfi": _two_levels(dict(fn="barfi", auxiliary=dict(fn="feature", index=5), scale=0.5, discount_cost=0.001)),
    "barfi_helpful": _two_levels(
        dict(fn="barfi", auxiliary=dict(fn="grid_distance", goal=15), scale=0.5, discount_cost=0.001)
    ),
    # arXiv 2308.02585 (PARL). design.implicit=False leaves the trained policy out of the reward's gradient.
    "parl": _two_levels(
        dict(fn="parl", length=8, beta=5.0, implicit=True, reward_cost=0.01),
        entropy_coef=0.1,
        outer_rate=0.005,
    ),
    "expert": (_TOUR, dict(fn="")),
    "gail": (_TOUR, dict(fn="by_discriminator", demos="", kind="gail")),
    "airl": (_TOUR, dict(fn="by_discriminator", demos="", kind="airl")),
    "liayn": (_TOUR, dict(fn="by_discriminator", demos="", kind="liayn")),
    # arXiv 2404.18896 (AIME-v2): how likely a model of the demonstrations finds the next observation.
    "likelihood": (_TOUR, dict(fn="by_likelihood", demos="")),
    # arXiv 2310.07433. With a scripted episode of 16 steps every one of 3 seeds makes all stops after 40 updates
    # (20,480 steps), k is at 15 of 17 there. So do fixed discounts of .99 and .585, k's first: the tour shows its every
    # step in the observation, and does not tell them apart.
    "ads": (_TOUR, dict(fn="by_transport", demos="", scale=1.0)),
    # arXiv 2412.04835 (RAPL): the tour with noise beside it, an encoder that preferences between episodes taught, and
    # transport between its codes. The episodes, good and bad, are those of a run on the environment's reward:
    #   ... --config=configs/control/rewards.py:rapl --config.algorithm.relabel="{'fn': ''}" --workdir=runs/shown \
    #       --config.log_every=5 --config.checkpoint.every=5
    #   ... --config=configs/control/rewards.py:rapl --config.algorithm.relabel.demos=runs/shown/episodes.jsonl
    # algorithm.relabel.learning_rate=0.0 leaves the encoder as it is drawn.
    "rapl": (_CLUTTERED, dict(fn="by_aligned_transport", demos="", learning_rate=0.01)),
    "stages": (_TOUR, dict(fn="by_stages", demos="", stages=5)),
    # Auxiliary losses on the actor's layers; the reward stays the environment's.
    # arXiv 2306.13229 (TACO): K steps, CURL and rewards; `temporal` is its first term with K = 1.
    "taco": (_AUXILIARY | dict(auxiliary=dict(fn="taco", steps=3, coef=0.1)), dict(fn="")),
    "temporal": (_AUXILIARY | dict(auxiliary=dict(fn="temporal")), dict(fn="")),
    # arXiv 2401.00132 (CLAM): the policy reads a code of what the other one did, two parts of which are contrasted.
    # Return of 16 after 102,400 steps, four seeds: 8.8; 9.3 with slow_rate=1, 9.4 with a temperature of .1.
    # An untrained encoder has 9.5 (one seed): what it learns is not needed here.
    "clam": (_PARTNER | dict(auxiliary=dict(fn="agent_model")), dict(fn="")),
    "views": (_AUXILIARY | dict(auxiliary=dict(fn="views", kind="info_nce")), dict(fn="")),
    "robust_views": (_AUXILIARY | dict(auxiliary=dict(fn="views", kind="robust")), dict(fn="")),
    # arXiv 2305.11965 (iSogCLR): a temperature and a moving average for each anchor, kept from minibatch to minibatch.
    "anchored_views": (_AUXILIARY | dict(auxiliary=dict(fn="anchors")), dict(fn="")),
    # arXiv 2305.15801 (Lucy-SKG). Errands' rewards are of more than one sign.
    "reward_sequence": (
        _ERRANDS | dict(auxiliary=dict(fn="reward_sequence_and_state", steps=20, coef=1.0)),
        dict(fn=""),
    ),
    "reward_and_state": (_ERRANDS | dict(auxiliary=dict(fn="reward_and_state")), dict(fn="")),
    # arXiv 2507.21049 (Rep-MTL): three predictions on the same layers; entropy_coef and alignment_coef at 0.0 are the
    # predictions alone.
    "rep_mtl": (_ERRANDS | dict(auxiliary=dict(fn="rep_mtl", entropy_coef=0.9, alignment_coef=0.9)), dict(fn="")),
    # arXiv 2403.00673: starts from a teacher's states for the first 100,000 steps. It is scripted, or a finished run of
    # control.ppo, as the paper's; here plain PPO and then its students:
    #   ... --config=configs/control/rewards.py:snapshots --config.env.snapshots.until=0 --workdir=runs/teacher
    #   ... --config=configs/control/rewards.py:snapshots --config.env.snapshots.run=runs/teacher
    "snapshots": (
        _PROBE
        | dict(
            env=dict(
                name="probes/corridor",
                length=40,
                snapshots=dict(
                    run="",  # folder of the teacher; "": `teacher`
                    teacher=dict(fn="mostly", action=1, share=0.6),
                    episodes=10,
                    every=10,
                    max_steps=160,
                    clusters=6,
                    until=100_000,
                    limit=100,
                ),
            ),
            train=dict(total_steps=200_000, optimizer=dict(learning_rate=3e-3)),
            eval=dict(max_steps=160),
        ),
        dict(fn=""),
    ),
}


def get_config(arg: str | None = None):
    words = common.parse(arg, (*PLACES, "smoke"))
    names = sorted(words & set(PLACES))
    if len(names) > 1:
        raise ValueError(f"choose at most one reward, not {', '.join(names)}")
    name = names[0] if names else "terms"
    fields, relabel = PLACES[name]
    config = control_common.base(f"control_rewards_{name}")
    config.num_seeds = 4
    auxiliary = fields.get("auxiliary", dict(fn=""))
    config.update({group: values for group, values in fields.items() if group != "auxiliary"})
    config.algorithm.relabel = relabel
    config.algorithm.auxiliary = auxiliary
    if "smoke" in words:
        control_common.smoke(config)
    return config


def sweep_seed(arg: str | None = None):
    """Test seeds; each is a run of its own, regardless of config.num_seeds."""
    return sweeps.product(sweeps.seeds(arg), sweeps.grid("num_seeds", (1,)))


def sweep_reward(arg: str | None = None):
    """The rewards, each in its own environment."""
    return sweeps.grid("argument", sweeps.words(arg, tuple(PLACES)))
