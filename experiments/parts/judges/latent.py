"""A judge of moves in a game of free text: the regret of the latent strategy that a text belongs to (LSPO)."""

from collections import defaultdict

import numpy as np

from experiments.parts.judges.base import Judge, Rows, Verdict, info_of
from experiments.parts.setup import Setup
from rl_jax.core.binding import resolve
from rl_jax.selection import latent_strategies as latent

MEASURES = ("regret", "policy")
LEAST = 1e-3  # of a probability, before its log


def latent_strategies(
    setup: Setup,
    *,
    game: str = "rl_jax.envs.text.kuhn_talk:game",
    clusters: int = 3,
    rounds: int = 300,
    by: str = "regret",
) -> Judge:
    """Clusters the texts of each role, solves the game on the clusters by CFR, and pays each text by its cluster.

        regret: R(I, z(text)) / rounds          policy: log of the average strategy's probability of z(text)

    Texts of one cluster at one information set are equal, so that `pair_selection` with ties="drop" leaves them out.
    Equations: rl_jax.selection.latent_strategies. Components: `gap`, what both players could still gain against the
    actions of the step's texts, `latent_gap`, the same against the strategy that CFR finds, and `clusters`, per role.
    Source: arXiv 2502.04686. There a policy plays whole games, and the number of clusters grows from iteration to
    iteration, as in `latent_iterations`; here each step's prompts are all information sets, and `clusters` stays.

    Args:
      setup: of the run; its records' info has `infoset`.
      game: "module:function" of a function () -> rl_jax.envs.text.kuhn_talk.TextGame.
      clusters: most latent strategies of a role.
      rounds: of CFR.
      by: "regret" (the paper's) or "policy".

    Raises:
      ValueError: if `by` is unknown, or there are fewer than 2 clusters.
    """
    if by not in MEASURES or clusters < 2:
        raise ValueError(f"latent_strategies: by={by!r} is one of {', '.join(MEASURES)}, clusters={clusters} 2 or more")
    played = resolve(game)()
    names = latent.infosets(played.root)

    def judge(judged: Rows) -> Verdict:
        sets = [info_of(record)["infoset"] for record in judged.records]
        actions = np.asarray([played.action_of(text) for text in judged.completions])
        labels, table = by_role(played, sets, judged.completions, actions, clusters, names)
        effects = {name: table[played.role_of(name)] for name in names}
        found = latent.solve(played.root, effects, rounds=rounds)
        values = found.regrets if by == "regret" else {k: np.log(v + LEAST) for k, v in found.policy.items()}
        rewards = np.asarray([values[name][label] for name, label in zip(sets, labels, strict=True)], np.float32)
        numbers = {
            "gap": played.gap(shares(sets, actions, names, played)),
            "latent_gap": played.gap(latent.acted(found.policy, effects)),
            "clusters": np.mean([len(rows) for rows in table.values()]),
        }
        return Verdict(rewards, components={k: np.full(len(sets), v, np.float32) for k, v in numbers.items()})

    return judge


def by_role(
    played, sets: list[str], texts: list[str], actions: np.ndarray, clusters: int, names: dict
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """(the latent strategy of each text int [B], role -> M float [K, A]).

    Args:
      played: TextGame.
      sets: the information set of each text.
      texts: B.
      actions: int [B], what they do.
      clusters: most of a role.
      names: of latent_strategies.infosets.

    Raises:
      ValueError: if a role of the game has no text.
    """
    rows = defaultdict(list)
    for row, name in enumerate(sets):
        rows[played.role_of(name)].append(row)
    missing = {played.role_of(name) for name in names} - set(rows)
    if missing:
        raise ValueError(
            f"latent_strategies: no text of the roles {', '.join(sorted(missing))} in this batch: it needs all prompts "
            "in each, sample.prompts=dict(fn='ordered') and as many prompts_per_batch as the game has information sets"
        )
    labels, table = np.zeros(len(texts), int), {}
    for role, own in rows.items():
        labels[own] = latent.clustered(played.embed([texts[row] for row in own]), clusters)
        count = max(count for name, (_, count) in names.items() if played.role_of(name) == role)
        table[role] = latent.effects_of(labels[own], actions[own], count)
    return labels, table


def shares(sets: list[str], actions: np.ndarray, names: dict, played) -> dict[str, np.ndarray]:
    """infoset -> the shares of the actions of its texts; of its role's texts where it has none. Arguments as above."""
    found = {}
    for name, (_, count) in names.items():
        own = [k == name for k in sets]
        own = own if any(own) else [played.role_of(k) == played.role_of(name) for k in sets]
        found[name] = np.bincount(actions[own], minlength=count) / sum(own)
    return found
