"""Small problems whose answers are known: what a method reaches, beside the answer.

    python -m experiments.tools.known_answers bandits --seeds=20
    python -m experiments.tools.known_answers            # all of them

`bandits`: regrets of UCB1, Thompson sampling, Exp3 and uniform pulls against their bounds. `recovering`: the best
periodic schedule and the rounded one against the relaxation, and the regret of UCB's plans. `bidding`: the values of
campaigns. `tours`: the gap of the nearest-city tour. `fronts`: C-MORL's two stages. `groups`: max-min against the
mean, and EM over annotators. `directions`: policies conditioned on a direction. `bilevel`: hypergradients against
finite differences. `trees`: variances of rewards by comparisons of a tree's leaves and of a chain. PPO on the first
three and on tours is experiments.control.ppo with configs/control/environments.py:recovering, bidding or salesman.
"""

import argparse
import functools
import itertools
import random

import jax
import jax.numpy as jnp
import numpy as np

from rl_jax.control import bandits, bilevel, vector
from rl_jax.envs.worlds import bidding, recovering, recovering_plans
from rl_jax.envs.worlds import salesman as tours
from rl_jax.preferences import trees
from rl_jax.stats import comparisons, pareto

Rows = list[tuple[str, float, str]]  # (what, its value, the answer in words)


def bandit_regrets(seeds: int) -> Rows:
    """Regrets of 2,000 pulls of arms with means .9, .8, .5 (1904.07272)."""
    means, steps = jnp.array([0.9, 0.8, 0.5]), 2000
    keys, rows = jax.random.split(jax.random.key(0), seeds), []
    bounds = {
        "uniform": f"{steps * float(jnp.mean(0.9 - means)):.0f}, exactly in the mean",
        "ucb1": f"at most {float(bandits.ucb1_bound(0.9 - means, steps)):.0f}",
        "exp3": f"at most {bandits.exp3_bound(3, steps):.0f}",
        "thompson": "below ucb1",
    }
    for name, rule in bandits.RULES.items():
        game = functools.partial(bandits.play, rule(steps=steps), means, steps=steps)
        regrets = jax.jit(jax.vmap(game))(keys)[:, -1]
        rows.append((f"regret of {name}", float(np.mean(regrets)), bounds[name]))
    return rows


def recovering_bounds(seeds: int) -> Rows:
    """Arms that recover (2106.14813): the best schedules of two, plans of random ones, and a learner's regret."""
    rewards = ((0.5, 0.8, 0.95, 1.0), (0.3, 0.7, 1.0, 1.2))
    bound = recovering.relaxation(rewards)
    rows = [
        (
            f"best schedule of period {period}",
            recovering.best_schedule(rewards, period=period)[0],
            f"at most {bound:.4f}",
        )
        for period in (1, 2, 3, 4)
    ]
    rows.append(("periods of the rounded rates", recovering_plans.plan(rewards).value, f"at most {bound:.4f}"))
    for arms, pulls in ((4, 1), (16, 4), (64, 16)):
        tables = [np.sort(np.random.default_rng(seed).uniform(size=(arms, 8)), axis=1) for seed in range(seeds)]
        shares = [
            recovering_plans.plan(table, pulls=pulls).value / recovering.relaxation(table, pulls=pulls)
            for table in tables
        ]
        rows.append((f"share of the bound, {arms} arms, {pulls} pulls", float(np.mean(shares)), "to 1 with the pulls"))
    table = [[0.1, 0.5, 0.6, 0.7], [0.2, 0.3, 0.8, 0.9], [0.3, 0.35, 0.4, 0.45], [0.05, 0.1, 0.1, 0.1]]
    offline, steps = recovering_plans.plan(table).value, 8000
    for name, bonus in (("UCB's plans", 2.0), ("a smaller bonus", 0.5), ("no bonus", 0.0)):
        paid = [recovering_plans.learn(table, steps=steps, bonus=bonus, seed=seed) for seed in range(seeds)]
        for part, where in (("first", slice(None, 1000)), ("last", slice(-1000, None))):
            regret = float(np.mean(offline - np.array(paid)[:, where]))
            rows.append((f"regret per step of {name}, {part} 1,000", regret, "0: the plan that knows R"))
    return rows


def bidding_values(seeds: int) -> Rows:
    """Values of campaigns of 12 auctions by their budget (1701.02490)."""
    world = bidding.market()
    table = bidding.values(world, auctions=12, budget=60)
    most = 12 * float(world.values @ world.value_probs)
    answers = {0: "0: nothing can be bought", 12: "PPO reaches at most this", 60: f"{most:.3f}: all are won"}
    return [(f"V(12, {money})", float(table[12, money]), answer) for money, answer in answers.items()]


def tour_gaps(seeds: int) -> Rows:
    """The nearest-city tour of 7 random cities against the shortest one (2301.03313)."""
    gaps = []
    for seed in range(seeds):
        cities = np.random.default_rng(seed).uniform(size=(7, 2))
        gaps.append(tours.length(cities, tours.nearest_tour(cities)) / tours.best_tour(cities)[0] - 1.0)
    best = [tours.best_tour(np.random.default_rng(seed).uniform(size=(7, 2)))[0] for seed in range(seeds)]
    return [
        ("gap of the nearest city", float(np.mean(gaps)), "0 or more"),
        ("shortest tour", float(np.mean(best)), "minus PPO's eval/return is at least about this"),
    ]


def treasure_fronts(seeds: int) -> Rows:
    """C-MORL's two stages on a chain of treasures: go on, or take what is here (2410.02236)."""
    treasures = np.array([1.0, 3.0, 4.0, 4.5])  # concave and convex parts: some are on no line
    found = {"stage 1": [], "stage 2": []}
    for seed in range(seeds):
        value_of, shape = chain(treasures)
        first = vector.first_stage(value_of, jnp.array([[1.0, 0.0], [0.0, 1.0]]), shape, jax.random.key(seed))
        points = np.asarray(jax.vmap(value_of)(first))
        _, later = vector.second_stage(value_of, first)
        found["stage 1"].append(pareto.hypervolume(points, (0.0, 0.0)))
        found["stage 2"].append(pareto.hypervolume(later, (0.0, 0.0)))
    return [(f"hypervolume after {name}", float(np.mean(x)), "rises") for name, x in found.items()]


def chain(treasures: np.ndarray):
    """(value_of, shape) of a chain: action 0 takes the treasure here, 1 goes on; J = (treasure, time left)."""
    count = len(treasures)
    probs, rewards = np.zeros((count, 2, count), np.float32), np.zeros((count, 2, 2), np.float32)
    for state in range(count):
        rewards[state, 0] = treasures[state], count - state
        if state + 1 < count:
            probs[state, 1, state + 1] = 1.0
        else:
            rewards[state, 1] = rewards[state, 0]
    start = jnp.eye(count)[0]
    return lambda x: vector.returns(x, jnp.asarray(rewards), jnp.asarray(probs), start, discount=1.0), (count, 2)


def group_returns(seeds: int) -> Rows:
    """A majority of 80 % and a minority that likes another arm (2402.08925)."""
    rewards = jnp.array([[1.0, 0.6, 0.0], [0.0, 0.55, 1.0]])
    shares = jnp.array([0.8, 0.2])
    mean = vector.ascended(lambda x: shares @ (rewards @ jax.nn.softmax(x)), jnp.zeros(3), steps=500)
    fair = vector.maxmin(lambda x: rewards @ jax.nn.softmax(x), jnp.zeros(3), steps=3000, learning_rate=3.0)
    values = {name: rewards @ jax.nn.softmax(x) for name, x in (("mean", mean), ("maxmin", fair))}
    best = 0.55  # arm 1 gives min(.6, .55); mixtures with arm 2 give at most 4 / 7 of arms 1 and 2
    return [
        ("worst group, trained on the mean", float(jnp.min(values["mean"])), "0: the majority's arm"),
        ("worst group, max-min", float(jnp.min(values["maxmin"])), f"{12 / 21:.3f}, and above {best}"),
        ("mean over people, max-min", float(shares @ values["maxmin"]), "below the other's .8"),
    ]


def direction_control(seeds: int) -> Rows:
    """Rewards reached by a policy conditioned on a direction, after 3 rounds of best of 4 (2402.18571)."""
    angles = np.linspace(0.0, np.pi / 2, 5)
    rewards = jnp.stack([jnp.cos(jnp.linspace(0, jnp.pi / 2, 9)), jnp.sin(jnp.linspace(0, jnp.pi / 2, 9))], axis=1)
    directions = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    log_probs = vector.directional(jnp.full(9, -jnp.log(9.0)), rewards, directions, 4, 3)
    first = np.asarray(jnp.exp(log_probs) @ rewards)[:, 0]
    return [
        (f"first reward at {angle:.2f} rad", float(x), "falls with the angle")
        for angle, x in zip(angles, first, strict=True)
    ]


def bilevel_gradients(seeds: int) -> Rows:
    """dJ / dphi of BARFI's weights through a trained policy (2310.19007, 2308.02585)."""
    primary, auxiliary, eps = jnp.array([0.0, 0.3, 1.0]), jnp.array([1.0, 0.0, -0.5]), 1e-2
    loss = bilevel.soft_bandit(primary, entropy_coef=0.5)

    def inner(theta, phi):
        return loss(theta, bilevel.mixed_reward(phi, primary, auxiliary))

    def outer(theta, phi):
        return -jax.nn.softmax(theta) @ primary + 0.0 * phi[0]

    best = jax.jit(lambda phi: bilevel.solved(inner, jnp.zeros(3), phi, rate=2.0, steps=4000))
    phi, rows = jnp.array([1.0, 0.4]), []
    found = bilevel.hypergradient(outer, inner, best(phi), phi)
    for i in range(2):
        step = eps * jnp.eye(2)[i]
        expected = float(outer(best(phi + step), phi) - outer(best(phi - step), phi)) / (2 * eps)
        rows.append((f"dJ / dphi_{i + 1}", float(found[i]), f"{expected:.4f} by finite differences"))
    return rows


def tree_variances(seeds: int) -> Rows:
    """How far 12 comparisons determine rewards, of the leaves of a tree and of answers on their own (2402.10184)."""
    found = {name: [] for name in trees.TOPOLOGIES}
    for seed in range(seeds):
        rng, problem = random.Random(seed), (9, 3, -5, 8)
        asked = trees.write(rng, problem, 2)  # answers that nobody compared
        for name, make in (("tree", trees.grow), ("chain", trees.write)):
            answers = make(rng, problem, 2)
            edges = [(i, j, 1.0) for i, j in rng.sample(list(itertools.combinations(range(len(answers)), 2)), 12)]
            nodes = [*answers, *asked]
            edges += likeness(nodes, len(problem) - 1)
            variances = comparisons.posterior_variances(len(nodes), edges)[len(answers) :, len(answers) :]
            found[name].append(np.mean(variances[np.triu_indices(len(asked), 1)]))
    return [(f"variance of r - r' of new answers, {name}", float(np.mean(x)), "at most 4") for name, x in found.items()]


def likeness(answers: list, steps: int, variance: float = 4.0) -> list:
    """Edges of the inductive bias: the more steps two answers share, the nearer their rewards (4 if none)."""
    return [
        (i, j, variance * (steps - trees.shared(answers[i], answers[j]) + 0.1) / (steps + 0.1))
        for i, j in itertools.combinations(range(len(answers)), 2)
    ]


PROBLEMS = {
    "bandits": bandit_regrets,
    "recovering": recovering_bounds,
    "bidding": bidding_values,
    "tours": tour_gaps,
    "fronts": treasure_fronts,
    "groups": group_returns,
    "directions": direction_control,
    "bilevel": bilevel_gradients,
    "trees": tree_variances,
}


def table(rows: Rows) -> str:
    """The rows as a Markdown table."""
    lines = [
        "| what | found | known |",
        "|---|---|---|",
        *(f"| {what} | {x:.4f} | {known} |" for what, x, known in rows),
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Prints the tables of the problems on the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("problems", nargs="*", help=f"of {', '.join(PROBLEMS)}; none is all")
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    unknown = sorted(set(options.problems) - set(PROBLEMS))
    if unknown or options.seeds < 1:
        parser.error(
            f"{unknown} not in {', '.join(PROBLEMS)}" if unknown else f"--seeds={options.seeds} must be 1 or more"
        )
    for name in options.problems or PROBLEMS:
        print(f"## {name}\n\n{table(PROBLEMS[name](options.seeds))}")


if __name__ == "__main__":
    main()
