"""Searches a reward among texts that a person or a language model writes: Eureka, ICPL, Text2Reward, Auto MC-Reward.

    python -m experiments.tools.reward_code --config=configs/control/reward_code.py:car --workdir=runs/texts \
        --proposals=texts.jsonl --candidates=4 --generations=1
    python -m experiments.tools.reward_code --config=... --workdir=... --proposals=eureka --url=http://127.0.0.1:8000 \
        --task="Drive the car up the hill on the right, to position 0.5."

A text is a few assignments of arithmetic over the observation's entries, the action, the config's terms and the task's
reward (rl_jax.control.reward_code); nothing of it is executed. The texts of a generation train in one compiled program.
A text that is refused, or whose reward is not finite, is counted and told to whoever writes; it stops nothing.

--proposals: a file with {"reward": text} per line, `--candidates` of them per generation, or a way to ask the chat
server at --url: `eureka`, `icpl` (people vote in --votes=FILE, otherwise the score does), `text2reward` (a person's
words are in --feedback=FILE), `auto_mc` (a designer, a critic, an analyser). The best text and the config's own then
train on test seeds that no candidate has seen. search.jsonl has every text with its score, its curves and its error,
exchanges.jsonl what was asked and answered. The same command goes on where the last one stopped; other
settings are refused.
"""

import argparse
import json
import math
import pathlib
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from experiments.parts import check_config, control_loop, control_setup, reward_proposals
from experiments.parts.chat import Chat
from experiments.parts.episodes import EPISODES
from experiments.parts.reward_proposals import PROPOSERS, Asked, Candidate
from experiments.parts.reward_texts import Row, score_of
from experiments.parts.reward_trials import ROWS, TEST_SEEDS, append, check_resumed, given, run_fields, write
from experiments.sweep.points import load_config, set_fields
from rl_jax.control import reward_code
from rl_jax.control.relabelling import coded
from rl_jax.core.visible import visible
from rl_jax.runs import disk
from rl_jax.runs.logging import encode_row, read_jsonl

CHOICE = "algorithm.relabel.choice"
CURVES = {"reward": "relabel/reward", "task_score": "eval/return", "episode_length": "eval/length"}
STATISTICS = {"max": np.max, "last": lambda rows, axis: rows[-1]}  # of a run's evaluations


def known_of(config: ConfigDict) -> reward_code.Known:
    """What a text may read in the config's environment."""
    env = control_setup.load_env(config, config.sample.num_envs)
    relabel = config.algorithm.relabel.to_dict()
    return coded.known_names(
        distribution=control_setup.make_network(config, env, 1).distribution,
        observation_size=math.prod(env.observation_space.shape),
        names=relabel.get("names", ()),
        terms_of=relabel.get("terms_of", {}),
    )


def trained(
    config: ConfigDict, texts: Sequence[str], seeds: Sequence[Sequence[int]], *, statistic: str, record: bool
) -> tuple[list[Row], list[list[Row]]]:
    """Trains every text on its seeds, all in one program.

    Args:
      config: of experiments.control.ppo with the relabelling by_code.
      texts: that can be read.
      seeds: of each text's runs, as many for each.
      statistic: of STATISTICS: the score of a run among its evaluations.
      record: whether an episode of each run is recorded.

    Returns:
      (one row per text: error, score, the score of each seed, curves; the episodes of each text). The error of a text
      whose reward, or a gradient on it, was not finite says so, and its score is None.
    """
    config = config.copy_and_resolve_references()
    config.algorithm.relabel.programs = tuple(texts)
    known = known_of(config)
    codes = [reward_code.parse(text, known) for text in texts]
    found, state, whole = run_fields(config, [((CHOICE, float(i)),) for i in range(len(texts))], seeds)
    rows = []
    for i, text in enumerate(texts):
        mine = {name: values[:, i] for name, values in found.items()}  # float [rows, seeds]
        error = not_finite(mine)
        scores = STATISTICS[statistic](mine["eval/return"], axis=0).tolist()
        curves = {name: np.mean(mine[metric], axis=1).tolist() for name, metric in CURVES.items()}
        metrics = coded.metric_names(codes, i)
        curves["components"] = {name: np.mean(mine[metric], axis=1).tolist() for name, metric in metrics.items()}
        score = None if error else float(np.mean(scores))
        row = {"text": text, "error": error, "score": score, "scores": scores, "curves": curves}
        rows.append(row | {"every": config.log_every})
    episodes = recorded(whole, state, len(texts)) if record else [[] for _ in texts]
    return rows, episodes


def not_finite(metrics: dict[str, np.ndarray]) -> str:
    """What was not finite in the training of a text, in words; "" if all was. metrics: float [rows, seeds]."""
    share, skipped = np.max(metrics["relabel/not_finite"]), np.max(metrics["nonfinite/skipped"])
    if share > 0.0:
        return f"the reward was nan or infinite in up to {100 * share:.3g} % of the steps between two evaluations"
    if skipped > 0.0:
        return f"{skipped:.0f} gradients were not finite: the reward is too large"
    return ""


def recorded(config: ConfigDict, state: Any, count: int) -> list[list[Row]]:
    """An episode of the last policy of each run, as rows of episodes.jsonl, by candidate."""
    record, seeds = control_loop.make_recorder(config), len(config.runs) // count
    updates = control_setup.num_updates(config)

    def one(run: int) -> Row:
        own = state._replace(train=jax.tree.map(lambda x: x[run : run + 1], state.train))
        return record(own, updates)[0]

    return [[one(i * seeds + seed) for seed in range(seeds)] for i in range(count)]


def tuned(
    config: ConfigDict, options: argparse.Namespace, candidates: Sequence[Candidate], generation: int
) -> tuple[list[Row], list[Row]]:
    """(rows of a generation's candidates, their episodes): those that can be read are trained, all are rows."""
    good = [candidate for candidate in candidates if not candidate.error]
    record = options.record or options.proposals in reward_proposals.EPISODES
    seeds = [range(options.seeds)] * len(good)
    how = dict(statistic=options.score, record=record)
    results, episodes = trained(config, [each.text for each in good], seeds, **how) if good else ([], [])
    made, films, rows, kept = iter(results), iter(episodes), [], []
    for index, candidate in enumerate(candidates):
        own = {"part": "tune", "generation": generation, "index": index, "answer": candidate.answer}
        own["rounds"] = candidate.rounds
        failed = {"text": candidate.text, "error": candidate.error, "score": None, "scores": []}
        rows.append(own | (failed if candidate.error else next(made)))
        shown = [] if candidate.error else next(films)
        kept += [{"generation": generation, "index": index} | episode for episode in shown]
    return [json.loads(encode_row(row)) for row in rows], [json.loads(encode_row(row)) for row in kept]


def chosen(options: argparse.Namespace, asked: Asked, rows: Sequence[Row]) -> str:
    """The text that goes to the test seeds: the best score, or icpl's last good example.

    Raises:
      ValueError: if no text trained.
    """
    if not any(math.isfinite(score_of(row)) for row in rows):
        raise ValueError(f"none of {len(rows)} rewards could be used; search.jsonl says why")
    if options.proposals == "icpl":
        return reward_proposals.votes(asked, rows)[-1][0]["text"]
    return max(rows, key=score_of)["text"]


def asked_of(config: ConfigDict, options: argparse.Namespace) -> Asked:
    """What the proposer works with, without episodes.

    Raises:
      ValueError: if it needs a server or a task and has none.
    """
    chat, path = None, None
    if options.proposals in PROPOSERS:
        if not options.url or not options.task:
            raise ValueError(
                f"--proposals={options.proposals} needs --url of a chat server and --task, what is to be done"
            )
        chat = Chat(
            options.url,
            model=options.model,
            temperature=options.temperature,
            max_tokens=options.max_tokens,
            seed=options.seed,
            log=options.workdir / "exchanges.jsonl",
        )
        path = {"icpl": options.votes, "text2reward": options.feedback}.get(options.proposals)
    else:
        path = pathlib.Path(options.proposals)
        if not path.is_file():
            raise ValueError(f"--proposals={path}: neither {', '.join(PROPOSERS)} nor a file")
    return Asked(
        count=options.candidates,
        known=known_of(config),
        names=tuple(config.algorithm.relabel.get("names", ())),
        task=options.task,
        chat=chat,
        path=path,
        repairs=options.repairs,
        rounds=options.rounds,
        solved=options.solved,
        beta=options.beta,
        seed=options.seed,
    )


def run(config: ConfigDict, options: argparse.Namespace) -> list[Row]:
    """The search.

    Args:
      config: of experiments.control.ppo with the relabelling by_code.
      options: of the command line.

    Returns:
      The rows of the test: the chosen text's and the config's own.

    Raises:
      ValueError: if the config's rewards are no text, its environment gives no evaluation, the server cannot be used,
        or no text trains.
      disk.InUseError: if another search is going on in options.workdir.
    """
    if config.program != "control.ppo" or config.algorithm.relabel.fn != "by_code" or not config.eval.num_episodes:
        raise ValueError(
            "reward_code needs a config of experiments.control.ppo with algorithm.relabel.fn='by_code' and "
            "eval.num_episodes of 1 or more, such as configs/control/reward_code.py:car"
        )
    check_config.check(config)
    disk.lock(options.workdir)
    asked, propose = asked_of(config, options), PROPOSERS.get(options.proposals, reward_proposals.from_file)
    path, films = options.workdir / ROWS, options.workdir / f"{EPISODES}.jsonl"
    rows = read_jsonl(path) if path.exists() else []
    tested = [row for row in rows if row["part"] == "test"]
    rows = [row for row in rows if row["part"] == "tune"]
    check_resumed(path, config, options, rows, tested)
    while len(rows) < options.generations * options.candidates:
        generation = len(rows) // options.candidates
        # Without those of this generation: a search that was killed after it had written them trains it again.
        episodes = read_jsonl(films) if films.exists() else []
        episodes = [episode for episode in episodes if episode["generation"] < generation]
        new, shown = tuned(config, options, propose(asked._replace(episodes=episodes), rows), generation)
        # Episodes first: a search that is killed between the two trains the generation again and replaces them.
        write(films, [*episodes, *shown])
        append(path, new)
        rows += new
        failed = sum(bool(row["error"]) for row in new)
        print(
            f"generation {generation}: best {max(map(score_of, rows)):.3f}, {failed} of {len(new)} failed", flush=True
        )
    if not tested:
        unseen = [range(TEST_SEEDS, TEST_SEEDS + options.test_seeds)] * 2
        pair = [chosen(options, asked, rows), config.algorithm.relabel.programs[0]]
        results, _ = trained(config, pair, unseen, statistic=options.score, record=False)
        names = zip(results, ("found", "hand"), strict=True)
        tested = [json.loads(encode_row(row | {"part": "test", "name": name})) for row, name in names]
        append(path, tested)
    return tested


def table(rows: Sequence[Row]) -> str:
    """The test as a Markdown table, and the texts below it."""
    lines = ["| reward | score, test seeds | seeds |", "|---|---|---|"]
    lines += [f"| {row['name']} | {score_of(row):.3f} | {len(row['scores'])} |" for row in rows]
    return "\n".join(lines) + "\n" + "".join(f"\n{row['name']}:\n{visible(row['text'])}\n" for row in rows)


def main() -> None:
    """Runs the search of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", required=True, help="configs/control/reward_code.py:car, or a config of your own")
    parser.add_argument("--workdir", required=True, type=pathlib.Path)
    parser.add_argument("--proposals", required=True, help=f"{', '.join(PROPOSERS)}, or a file of texts")
    parser.add_argument("--task", default="", help="the task in words, for the server")
    parser.add_argument("--url", default="", help="of a chat server, http://127.0.0.1:8000")
    parser.add_argument("--model", default="", help="the server's name for its model")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--max_tokens", type=int, default=2048, help="of an answer")
    parser.add_argument("--generations", type=int, default=5)
    parser.add_argument("--candidates", type=int, default=16, help="per generation")
    parser.add_argument("--seeds", type=int, default=2, help="tuning seeds per candidate")
    parser.add_argument("--test_seeds", type=int, default=5, help="further seeds for the chosen and the config's own")
    parser.add_argument("--score", default="max", choices=STATISTICS, help="of a run's evaluations; max as in Eureka")
    parser.add_argument("--record", action="store_true", help="an episode of each run, if nothing else needs them")
    parser.add_argument("--repairs", type=int, default=1, help="requests that a refused text is sent back in")
    parser.add_argument("--votes", type=pathlib.Path, help="icpl: people's votes, a file")
    parser.add_argument("--beta", type=float, default=math.inf, help="icpl without votes: rationality of the voter")
    parser.add_argument("--feedback", type=pathlib.Path, help="text2reward: people's words, a file")
    parser.add_argument("--rounds", type=int, default=2, help="auto_mc: of the critic, at most")
    parser.add_argument("--solved", type=float, default=math.inf, help="auto_mc: a lower return has failed")
    parser.add_argument("--seed", type=int, default=0, help="of the requests and the votes")
    options, overrides = parser.parse_known_args()
    try:
        print(table(run(set_fields(load_config(options.config), given(overrides)), options)), end="")
    except (OSError, ValueError, disk.InUseError) as error:
        parser.exit(1, f"{error}\n")


if __name__ == "__main__":
    main()
