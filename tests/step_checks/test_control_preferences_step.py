"""experiments.control.preferences: the fits and two updates of each method, against control_preferences_step.py."""

import functools
import math
from typing import NamedTuple

import jax
import numpy as np
import pytest

from configs.control import preferences as configs
from experiments.control import preferences as control_preferences
from experiments.parts import control_loop, control_rewards, control_runs, control_segments, control_setup
from experiments.parts import run as runs
from rl_jax import control, envs
from rl_jax.control import cpl, segments
from rl_jax.control import update as control_update
from rl_jax.envs.worlds import tabular as tables
from rl_jax.rollout.envs.steps import Transitions
from rl_jax.runs.logging import read_jsonl
from tests.experiments.small import kept_signals  # noqa: F401
from tests.step_checks import control_preferences_step as slow
from tests.step_checks import control_step, forward, record_calls
from tests.step_checks.test_control_step import walk

pytestmark = [pytest.mark.usefixtures("kept_signals"), pytest.mark.slow]

SETTINGS = control_step.Settings(updates=2)
FIT, CPL, TABLE = slow.Fit(), slow.Cpl(), slow.Table()
LENGTH, ACTIONS, QUEUE, TAU = 4, 2, 20, 0.5
LABEL_DISCOUNT = {"reward": 0.9, "cpl": 0.9, "regret": 0.95}
TOLERANCE = 1e-4


class Case(NamedTuple):
    """What a run has done, in the order of its calls."""

    rows: list
    """dicts of steps: of the teacher's rollout, if the method has segments, and then of each update."""
    orders: list
    """Of each update's minibatches."""
    pairs: list
    """To train on, and held out, int [M, 2]."""
    batches: list
    """Of each update of a fit, int [n, 2]."""
    inits: list
    """Params that the segments' agent was begun with, of the reward network, of CPL before and after cloning."""
    ends: list
    """Params at the start and at the end, nested."""
    rewards: list
    """The learned reward's params, means and stds at these moments."""
    row: dict
    """The last row of metrics."""


def config(method: str):
    s, found = SETTINGS, configs.get_config(f"{method},smoke")
    found.update(num_seeds=1, log_every=2)
    found.sample.update(num_envs=4, num_steps=12)
    found.network.hidden = (8,)
    found.train.update(total_steps=96, epochs=s.epochs, minibatches=s.minibatches, max_grad_norm=s.max_norm)
    found.train.optimizer.update(learning_rate=s.rate, final_fraction=s.final, b1=s.b1, b2=s.b2, eps=s.eps)
    found.algorithm.update(
        normalize_observations=method == "spo", normalize_rewards=method in ("reward", "spo"),
        entropy_coef=s.entropy_coef, kl_coef=s.kl_coef, value_coef=s.value_coef,
        advantage=dict(fn="gae", discount=s.discount, lam=s.lam),
        surrogate=dict(fn="clipped_surrogate", clip_low=s.clip, clip_high=s.clip),
        value_loss=dict(fn="clipped", value_clip=s.value_clip),
    )  # fmt: skip
    found.eval.update(num_episodes=0 if method == "spo" else 1, max_steps=2)
    found.checkpoint.every = 2
    if method == "spo":
        found.spo.update(preference=dict(fn="bradley_terry", temperature=TAU), queue_size=QUEUE)
        return found
    found.segments.update(num_envs=5, num_steps=14, length=LENGTH, num_pairs=24, held_out=16, beta=math.inf)
    found.segments.label.discount = LABEL_DISCOUNT[method]
    found.fit.update(updates=3, batch_size=8, max_grad_norm=FIT.max_norm, discount=FIT.discount)
    found.fit.optimizer.update(learning_rate=FIT.rate, b1=FIT.b1, b2=FIT.b2, eps=FIT.eps)
    if method == "reward":
        found.reward.update(members=2, hidden=(8,), center=True, regularizer_coef=FIT.coef)
    else:
        found.train.total_steps = 2 * 2 * 8 * LENGTH
    if method == "cpl":
        found.segments.label.fn = "partial_return"
        found.cpl.update(cloning_updates=3, **CPL._asdict())
    if method == "regret":
        found.segments.num_steps = 60  # the goal is rarely found
        found.tabular.update(TABLE._asdict())
    return found


def run(method: str, workdir) -> Case:
    case = Case([], [], [], [], [], [], [], {})

    def keep(place, x):
        jax.debug.callback(lambda x: place.append(jax.tree.map(np.array, x)), x, ordered=True)

    def kept(fn, note):
        def call(*args, **more):
            found = fn(*args, **more)
            note(found, args)
            return found

        return call

    collect, shuffled, make_program = control_update.collect, control_update.shuffled, control_loop.make_program
    train = control_loop.train
    make_agents, make_network = control_segments.make_agent_setup, control_rewards.make_reward_network
    pair_batch, labelled, clone = segments.pair_batch, segments.labelled_pairs, cpl.clone
    unravel = []

    def agents(config):
        setup = make_agents(config)
        unravel.append(control.unraveler(setup.agent))
        init = kept(setup.agent.init, lambda params, _: keep(case.inits, params))
        return setup._replace(agent=setup.agent._replace(init=init))

    def networks(*args, **more):
        network = make_network(*args, **more)
        return network._replace(init=kept(network.init, lambda params, _: keep(case.inits, params)))

    def cloned(score, params, *args, **more):
        keep(case.inits, unravel[0](params))
        params = clone(score, params, *args, **more)
        keep(case.inits, unravel[0](params))
        return params

    def ends(program, state):
        found = program.finals(state)
        found = found if isinstance(found, dict) else {"rewards": found}
        case.ends.append(jax.tree.map(lambda x: np.array(x)[0], found))
        if "relabel" in getattr(state.train, "trackers", {}) and method == "reward":
            case.rewards.append(jax.tree.map(lambda x: np.array(x)[0], state.train.trackers["relabel"]))

    def kept_ends(config, make_run):
        program = make_program(config, make_run)

        def init():
            state = program.init()
            ends(program, state)
            return state

        def advance(state):
            state, metrics = program.advance(state)
            ends(program, state)
            return state, metrics

        return program._replace(init=init, advance=advance)

    note_rows = kept(collect, lambda found, _: keep(case.rows, found[1]))
    of_pairs = kept(pair_batch, lambda _, args: keep(case.batches, args[0].pairs[args[1]]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(control_update, "collect", note_rows)
        patch.setattr(control_segments, "collect", note_rows)
        patch.setattr(control_update, "shuffled", kept(shuffled, lambda order, _: keep(case.orders, order)))
        patch.setattr(segments, "pair_batch", of_pairs)
        patch.setattr(segments, "labelled_pairs", kept(labelled, lambda pairs, _: keep(case.pairs, pairs)))
        patch.setattr(control_segments, "make_agent_setup", agents)
        patch.setattr(control_rewards, "make_reward_network", networks)
        patch.setattr(cpl, "clone", cloned)
        patch.setattr(control_loop, "make_program", kept_ends)
        # No episodes are recorded: a program less. experiments/test_control_preferences.py compares those of its runs.
        patch.setattr(control_loop, "train", lambda *args: train(*args[:3], lambda config: lambda state, step: []))
        if method != "regret":
            for place in (control_runs, control_setup, control_loop):
                patch.setattr(place, "load_env", lambda config, count, **more: envs.vectorize(walk(), count))
        patch.setattr(runs.Run, "ahead", record_calls.not_ahead)
        patch.setattr(control_runs, "CPU_OPTIONS", {"xla_backend_optimization_level": 0})
        control_preferences.run(config(method), workdir)
    jax.effects_barrier()
    case.row.update(read_jsonl(workdir / "metrics.jsonl")[-1])
    return case._replace(rows=[dict(zip(Transitions._fields, rows, strict=True)) for rows in case.rows])


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    """method -> Case."""
    return functools.cache(lambda method: run(method, tmp_path_factory.mktemp(method) / "run"))


def scores_of(case: Case, method: str, cut: dict) -> np.ndarray:
    """What the annotator compares: discounted sums of the true rewards, or of minus the regret."""
    added = cut["rewards"]
    if method == "regret":
        table = tables.gridworld()
        exact = slow.advantages(
            slow.torch.tensor(np.float64(table.rewards)), table.transition_probs, slow.Table(0.95, 0.0, 100)
        )
        added = exact[cut["observations"].argmax(-1), cut["actions"]]
    return slow.sums(added, cut["mask"], LABEL_DISCOUNT[method]).numpy()


def fitted(case: Case, method: str, without: str = ""):
    """(error of the fit relative to the update, what was fitted)."""
    cut = slow.cut(case.rows[0], LENGTH, without)
    if method == "reward":
        start, found = case.inits[2], case.rewards[0]
        reward = slow.reward_fit(start, cut, case.batches, ACTIONS, FIT, without)
        scale = sum(np.abs(x.numpy() - y).max() for x, y in zip(reward[1:], (found.means, found.stds), strict=True))
        return forward.update_error(start, reward[0], found.params) + float(scale), reward
    if method == "regret":
        probs = tables.gridworld().transition_probs
        table = slow.table_fit(case.ends[0], cut, case.batches, probs, TABLE, FIT, without)
        return forward.update_error(case.ends[0], table, case.ends[1]), table
    start, cloned = case.inits[3], case.batches[:3]
    begun, params = slow.cpl_fit(start, cut, cloned, case.batches[3:], CPL, FIT, without)
    begun_error = forward.update_error(start, forward.leaves(begun), case.ends[0])
    return begun_error + forward.update_error(case.ends[0], params, case.ends[1]), params


def paid(case: Case, reward: tuple) -> list[dict]:
    """The rollouts of PPO with learned rewards."""
    return [rows | {"rewards": slow.learned(reward, rows, ACTIONS)} for rows in case.rows[1:]]


def trained(case: Case, rollouts: list[dict], settings, without: str = "") -> tuple[float, list]:
    params, _, outputs = control_step.replay(case.ends[0], rollouts, case.orders, settings, without)
    return forward.update_error(case.ends[0], params, case.ends[1]), outputs


@pytest.mark.parametrize("method", ["reward", "regret", "cpl"])
def test_segments_are_cut_and_labelled_as_the_slow_code_does(cases, method):
    case = cases(method)
    cut = slow.cut(case.rows[0], LENGTH)
    assert 0.5 < cut["mask"].mean() < 1.0, "some segments end with their episode"
    scores = scores_of(case, method, cut)
    train, held_out = case.pairs
    assert train.shape == (24, 2) and held_out.shape == (16, 2)
    for pairs in case.pairs:
        assert slow.wrong_labels(scores, pairs) == 0 < slow.wrong_labels(-scores, pairs)
    whole = slow.cut(case.rows[0], LENGTH, "segments end")
    others = scores_of(case, method, whole), slow.sums(cut["rewards"], cut["mask"], 0.2).numpy()
    assert max(slow.wrong_labels(other, train) for other in others) > 0, "a label needs its episode's own steps"
    rows = {tuple(pair) for pair in train}
    assert all(tuple(pair) in rows for batch in case.batches for pair in batch), "trained on the held-out pairs"
    assert len({batch.tobytes() for batch in case.batches}) == len(case.batches), "each update has its own pairs"


@pytest.mark.parametrize("method", ["reward", "cpl"])
def test_the_steps_of_segments_are_of_the_teacher_and_of_another(cases, method):
    case = cases(method)
    teacher, other = (forward.leaves(params) for params in case.inits[:2])
    seen = slow.torch.tensor(np.float64(case.rows[0]["observations"]))
    best, worst = (control_step.network(params, "actor", seen).detach().numpy() for params in (teacher, other))
    share = np.linspace(0.0, 1.0, 5)[:, None, None]
    np.testing.assert_allclose(case.rows[0]["outputs"], (1 - share) * best + share * worst, rtol=1e-3, atol=1e-5)
    assert np.abs(best - worst).max() > 1e-3


@pytest.mark.parametrize("method", ["reward", "regret", "cpl"])
def test_the_fit_is_that_of_the_slow_code(cases, method):
    case = cases(method)
    error, found = fitted(case, method)
    assert error < TOLERANCE
    if method == "reward":
        assert all(np.array_equal(x, y) for x, y in zip(*map(jax.tree.leaves, case.rewards[:2]), strict=True))
        expected = slow.held_out(found, slow.cut(case.rows[0], LENGTH), case.pairs[1], ACTIONS, FIT)
        assert max(forward.metric_errors([expected], [case.row]).values()) < TOLERANCE


@pytest.mark.parametrize(
    ("method", "term"),
    [("reward", x) for x in slow.OF_REWARDS] + [("regret", x) for x in slow.OF_REGRETS]
    + [("cpl", x) for x in slow.OF_CPL],
    ids=lambda x: x.replace(" ", "_"),
)  # fmt: skip
def test_every_term_moves_the_fit(cases, method, term):
    assert fitted(cases(method), method, term)[0] > 5 * TOLERANCE


def test_ppo_on_the_learned_reward_is_that_of_the_slow_code(cases):
    case = cases("reward")
    assert len(case.rows) == 3 and len(case.orders) == 2
    rollouts, plain = paid(case, fitted(case, "reward")[1]), SETTINGS._replace(normalize=False)
    error, outputs = trained(case, rollouts, plain)
    for acted, rows in zip(outputs, rollouts, strict=True):
        np.testing.assert_allclose(rows["outputs"], acted, rtol=1e-3, atol=1e-5)
    assert error < TOLERANCE
    assert trained(case, case.rows[1:], plain)[0] > 5 * TOLERANCE, "the true reward gives something else"
    for term in ("scaled rewards", "kl", "whitening"):
        assert trained(case, rollouts, plain, term)[0] > 5 * TOLERANCE, term
    for term in ("mean", "deviation", "of each member"):
        other = paid(
            case, slow.reward_fit(case.inits[2], slow.cut(case.rows[0], LENGTH), case.batches, ACTIONS, FIT, term)
        )
        assert trained(case, other, plain)[0] > 5 * TOLERANCE, term


def test_self_play_is_that_of_the_slow_code(cases):
    case = cases("spo")
    rollouts = slow.beaten(case.rows, QUEUE, TAU)
    done = [rows["terminated"] for rows in rollouts]
    assert min(map(np.sum, done)) >= 4 and sum(map(np.sum, done)) > QUEUE, "the queue is filled and overflows"
    assert done[1].sum() < QUEUE, "and keeps some of the first rollout's"
    error, outputs = trained(case, rollouts, SETTINGS)
    for acted, rows in zip(outputs, rollouts, strict=True):
        np.testing.assert_allclose(rows["outputs"], acted, rtol=1e-3, atol=1e-5)
    assert error < TOLERANCE
    cut_off = [rows | {"terminated": old["terminated"], "truncated": old["truncated"]}
               for rows, old in zip(rollouts, case.rows, strict=True)]  # fmt: skip
    assert trained(case, cut_off, SETTINGS)[0] > 5 * TOLERANCE, "what is cut off is settled, too"


@pytest.mark.parametrize("term", slow.OF_SELF_PLAY, ids=lambda x: x.replace(" ", "_"))
def test_every_term_of_self_play_moves_the_result(cases, term):
    case = cases("spo")
    assert trained(case, slow.beaten(case.rows, QUEUE, TAU, term), SETTINGS)[0] > 5 * TOLERANCE
