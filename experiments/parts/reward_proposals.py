"""Who proposes the rewards of a generation: a file, or a language model that is told how the last ones did.

from_file     a JSON object {"reward": text} per line
eureka        K samples; the best of the last generation and its reflection come back            2310.12931
icpl          as eureka, but votes choose a good and a bad example; how the good ones changed    2410.17233
text2reward   the reward of each generation so far and what a person says about its policy       2309.11489
auto_mc       a designer, a critic who reads each text, an analyser of failed episodes           2312.09238

Each is (Asked, rows of the generations before) -> `count` candidates. A text that is refused goes back to the server
with the error, `repairs` times; what is still refused is a row without a score, and the next request says why.
Texts of the prompts are ours. The loops of Eureka, ICPL and Text2Reward follow the published code; of Auto MC-Reward
only the paper's overview could be read.
"""

import pathlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from experiments.parts import reward_texts as texts
from experiments.parts.chat import Chat, Message, says
from experiments.parts.reward_texts import Candidate, Row
from rl_jax.control import reward_code, search
from rl_jax.data import readers

SIGNS = "\nreward = sign(sparse) + 0.1 * sign(dense)"
SIGNED = """Write two components of these names and no line for `reward`: `sparse`, which is positive when the task is \
done, negative when it has failed for good and 0 otherwise, and `dense`, which is positive in a step that comes nearer \
to the goal, negative in a step that goes away from it or into danger, and 0 otherwise. Only their signs count: the \
reward is sign(sparse) + 0.1 * sign(dense)."""
DIFFERENCE = """Two rewards were written for this task: {task}
The reward of generation {new}:
```
{new_text}
```
The reward of generation {old}:
```
{old_text}
```
Say how the reward of generation {new} differs from that of generation {old}, and nothing else."""
CRITIC = """You review rewards for reinforcement learning. Check whether the text does what the task needs: whether \
its names and signs mean what the author takes them for, whether the components agree with each other, whether a step \
that the task does not want is paid. Answer ACCEPT and nothing else if nothing is wrong. Otherwise say in a few \
sentences what is wrong."""
ANALYST = """You read episodes of an agent that did not do its task. Say in a few sentences what goes wrong in them, \
what the likely cause is, and what the reward should pay or punish in addition."""


class Asked(NamedTuple):
    """What a proposer works with.

    Attributes:
      count: candidates of a generation.
      known: what a text may read.
      names: of the observation's entries, or ().
      task: the task in words.
      chat: the server; None for a file.
      path: the file of `from_file`, of text2reward's feedback or of icpl's votes; None for none.
      episodes: rows of episodes.jsonl of the generations before, each with its generation and index.
      repairs: requests that a refused text is sent back in.
      rounds: of auto_mc's critic.
      solved: an episode of a lower return has failed.
      beta: rationality of icpl's voter, as search.voted takes it.
      seed: of its votes.
    """

    count: int
    known: reward_code.Known
    names: tuple[str, ...] = ()
    task: str = ""
    chat: Chat | None = None
    path: pathlib.Path | None = None
    episodes: Sequence[Row] = ()
    repairs: int = 1
    rounds: int = 2
    solved: float = float("inf")
    beta: float = float("inf")
    seed: int = 0


def generations(rows: Sequence[Row]) -> list[list[Row]]:
    """The rows of each generation, in order."""
    last = max((row["generation"] for row in rows), default=-1)
    return [[row for row in rows if row["generation"] == g] for g in range(last + 1)]


def lines_of(path: pathlib.Path, fields: Sequence[str]) -> list[tuple[int, dict[str, Any]]]:
    """(line number, JSON object) for each line of a file that is not blank.

    Raises:
      ValueError: if there is no such file, or a line is no JSON object with these fields.
    """
    if not path.is_file():
        raise ValueError(f"{path}: there is no such file; it needs a JSON object with {', '.join(fields)} per line")
    found = []
    for number, row in readers.read_objects(path, readers.BadRecords()):
        if not set(fields) <= set(row):
            raise ValueError(f"{path}:{number} must be a JSON object with {', '.join(fields)}")
        found.append((number, row))
    return found


def from_file(asked: Asked, rows: Sequence[Row]) -> list[Candidate]:
    """The next `count` lines. A text that is refused is a candidate with an error: it does not stop the search.

    Raises:
      ValueError: if the file has too few lines, or a line is no JSON object with a text `reward`.
    """
    generation = len(generations(rows))
    lines = lines_of(asked.path, ("reward",))
    first = generation * asked.count
    if len(lines) < first + asked.count:
        wanted = f"generation {generation} needs lines {first + 1} to {first + asked.count}"
        raise ValueError(f"{asked.path}: {wanted}, it has {len(lines)}")
    chosen = lines[first : first + asked.count]
    return [texts.read(str(line["reward"]), asked.known, f"{asked.path}:{number}") for number, line in chosen]


def sampled(asked: Asked, messages: Sequence[Message], generation: int, ending: str = "") -> list[Candidate]:
    """`count` answers to the same messages, each mended if it is refused."""
    answers = asked.chat.ask(messages, asked.count, salt=generation)
    return [
        mended(asked, messages, answer, label_of(generation, index), ending) for index, answer in enumerate(answers)
    ]


def label_of(generation: int, index: int) -> str:
    """Names a candidate in errors."""
    return f"generation {generation}, candidate {index}"


def mended(asked: Asked, messages: Sequence[Message], answer: str, label: str, ending: str = "") -> Candidate:
    """The candidate of an answer to `messages`; if it is refused, after at most `repairs` requests with the error."""
    candidate = texts.read(answer, asked.known, label, ending)
    for rounds in range(1, asked.repairs + 1):
        if not candidate.error:
            break
        plea = says("user", texts.REPAIR.format(error=candidate.error))
        answer = asked.chat.ask([*messages, says("assistant", candidate.answer), plea])[0]
        candidate = texts.read(answer, asked.known, label, ending)._replace(rounds=rounds)
    return candidate


def succeeded(generation: Sequence[Row]) -> list[Row]:
    """The rows that trained."""
    return [row for row in generation if not row["error"]]


def with_failures(messages: Sequence[Message], generation: Sequence[Row]) -> list[Message]:
    """`messages` whose last one also says what went wrong in a generation."""
    *before, last = messages
    return [*before, says(last["role"], f"{last['content']}\n{texts.failures(generation)}".rstrip())]


def reflected(messages: Sequence[Message], done: Sequence[Sequence[Row]], words: Callable[[Row], str]) -> list[Message]:
    """`messages`, the best answer of the last generation that trained, and `words` about it; and the last failures.

    As in Eureka's code, a generation of which nothing trained leaves the conversation as it was.
    """
    trained = [found for found in map(succeeded, done) if found]
    if trained:
        best = max(trained[-1], key=texts.score_of)
        messages = [*messages, says("assistant", best["answer"]), says("user", words(best))]
    return with_failures(messages, done[-1]) if done else list(messages)


def eureka(asked: Asked, rows: Sequence[Row]) -> list[Candidate]:
    """K samples; then the best of the last generation that trained, with its reflection, in the same conversation.

    As the published code: the conversation has four messages, and the last two are replaced in each generation. Adds
    what went wrong in the last generation, and requests that repair a text.
    """
    messages, done = texts.opening(asked.task, asked.known, asked.names), generations(rows)
    messages = reflected(messages, done, lambda best: f"{texts.trace(best)}\n{texts.TIPS}")
    return sampled(asked, messages, len(done))


def votes(asked: Asked, rows: Sequence[Row]) -> list[tuple[Row, Row]]:
    """(the good, the bad example) of each generation that trained, by votes of people in a file or of the task's score.

    Raises:
      ValueError: if the file lacks a generation, or names a candidate that did not train.
    """
    lines = lines_of(asked.path, ("generation", "best", "worst")) if asked.path else []
    people = {line["generation"]: line for _, line in lines}
    found = []
    for number, generation in enumerate(generations(rows)):
        trained = succeeded(generation)
        if not trained:
            continue
        if asked.path and number not in people:
            raise ValueError(
                f'{asked.path}: add {{"generation": {number}, "best": I, "worst": J}}, the indices of two of '
                f"{[row['index'] for row in trained]}; their episodes are in episodes.jsonl of the workdir"
            )
        if number in people:
            by_index = {row["index"]: row for row in trained}
            named = [people[number][name] for name in ("best", "worst")]
            if not set(named) <= set(by_index):
                raise ValueError(f"{asked.path}: generation {number} trained {sorted(by_index)}, not {named}")
            found.append(tuple(by_index[index] for index in named))
            continue
        rng = np.random.default_rng([asked.seed, number])
        best, worst = search.voted(rng, [texts.score_of(row) for row in trained], beta=asked.beta)
        found.append((trained[best], trained[worst]))
    return found


def icpl(asked: Asked, rows: Sequence[Row]) -> list[Candidate]:
    """The good and the bad example of the last vote with their traces, and the history of the good ones.

    As the published code: all of it is one message, and the history has the trace of each earlier good example and how
    it differs from the next one, in words that the server is asked for. The task's score is not shown: people have seen
    the policies, and a stand-in for them votes by it. Departs: the code samples anew until K texts run; here a text is
    repaired, as for the others, and a generation may have fewer.
    """
    messages, done = texts.opening(asked.task, asked.known, asked.names), generations(rows)
    pairs = votes(asked, rows)
    if pairs:
        good, bad = pairs[-1]
        best = [pair[0] for pair in pairs]
        parts = [
            "People compared the policies that were trained on your rewards.",
            *(told_history(asked, old, new) for old, new in zip(best[:-1], best[1:], strict=True)),
            f"Of generation {good['generation']} they preferred the policy of this reward, the good example:\n```\n"
            f"{good['text']}\n```",
            texts.trace(good, score=False),
            f"They liked the policy of this one least, the bad example:\n```\n{bad['text']}\n```",
            texts.trace(bad, score=False),
            f"Most important: start from the good example, never from the bad one. {texts.AGAIN}",
        ]
        messages.append(says("user", "\n\n".join(parts)))
    return sampled(asked, with_failures(messages, done[-1]) if done else messages, len(done))


def told_history(asked: Asked, old: Row, new: Row) -> str:
    """The trace of a good example, and how the next one differs from it in the server's words."""
    names = {"old": old["generation"], "new": new["generation"], "old_text": old["text"], "new_text": new["text"]}
    found = asked.chat.once([says("user", DIFFERENCE.format(task=asked.task, **names))])
    return (
        f"The good example of generation {old['generation']}. {texts.trace(old, score=False)}\n"
        f"How that of generation {new['generation']} differs from it: {found}"
    )


def text2reward(asked: Asked, rows: Sequence[Row]) -> list[Candidate]:
    """The first from the task alone; each further one from the rewards so far and a person's words about each of them.

    The file has a line {"generation": 0, "feedback": text} per generation that trained; "candidate": its index
    (otherwise the best score), "description": what the policy does.

    Raises:
      ValueError: if a generation has no feedback, or a line names a candidate that did not train.
    """
    messages, done = texts.opening(asked.task, asked.known, asked.names), generations(rows)
    lines = lines_of(asked.path, ("generation", "feedback")) if done and asked.path else []
    for number, generation in enumerate(done):
        trained = {row["index"]: row for row in succeeded(generation)}
        said = [(place, line) for place, line in lines if line["generation"] == number]
        if trained and not said:
            raise ValueError(
                f"--feedback={asked.path or 'FILE'}: add a line "
                f'{{"generation": {number}, "description": what the policy does, "feedback": what to change}}; its '
                "episodes are in episodes.jsonl of the workdir"
            )
        for place, line in said if trained else ():
            index = line.get("candidate")
            if index is not None and (isinstance(index, bool) or index not in list(trained)):
                raise ValueError(
                    f'{asked.path}:{place} has "candidate": {index!r:.40}, but generation {number} trained '
                    f"{sorted(trained)}: name one of them, or none for the best score"
                )
            row = max(trained.values(), key=texts.score_of) if index is None else trained[index]
            seen = f"In the episodes of the policy one sees: {line['description']}\n" if line.get("description") else ""
            words = f"A policy was trained on this reward. {seen}What should change: {line['feedback']}\n{texts.AGAIN}"
            messages += [says("assistant", row["answer"]), says("user", words)]
    return sampled(asked, with_failures(messages, done[-1]) if done else messages, len(done))


def auto_mc(asked: Asked, rows: Sequence[Row]) -> list[Candidate]:
    """sgn(sparse) + 0.1 sgn(dense): designed, criticised up to `rounds` times, and designed anew after an analysis.

    A text is taken as it is after `rounds` objections; what the paper does then could not be read.
    """
    messages, done = texts.opening(asked.task, asked.known, asked.names), generations(rows)
    messages[0] = says("system", f"{messages[0]['content']}\n{SIGNED}")
    messages = reflected(messages, done, lambda best: f"{texts.trace(best)}\n{analysed(asked, best)}{texts.AGAIN}")
    return [
        criticised(asked, messages, candidate, label_of(len(done), index))
        for index, candidate in enumerate(sampled(asked, messages, len(done), SIGNS))
    ]


def analysed(asked: Asked, best: Row) -> str:
    """What the analyser says about the failed episodes of a policy, the worst three; "" if none has failed."""
    own = [e for e in asked.episodes if (e["generation"], e["index"]) == (best["generation"], best["index"])]
    failed = sorted((e for e in own if sum(e["rewards"]) < asked.solved), key=lambda e: sum(e["rewards"]))[:3]
    if not failed:
        return ""
    shown = "\n\n".join(texts.trajectory(episode, asked.names, last=10) for episode in failed)
    question = f"The task: {asked.task}\nThe reward:\n```\n{best['text']}\n```\n{shown}"
    answer = asked.chat.ask([says("system", ANALYST), says("user", question)])[0]
    return f"Somebody has read the episodes that failed: {answer}\n"


def criticised(asked: Asked, messages: Sequence[Message], candidate: Candidate, label: str) -> Candidate:
    """A candidate after at most `rounds` of a critic's objections, each answered by the designer.

    An answer that is refused leaves the text as it was.
    """
    for _ in range(asked.rounds):
        if candidate.error:
            break
        allowed = f"It may use: {asked.known.describe()}."
        question = f"The task: {asked.task}\n{allowed}\n```\n{candidate.text}\n```"
        verdict = asked.chat.ask([says("system", CRITIC), says("user", question)])[0]
        if verdict.strip().upper().startswith("ACCEPT"):
            break
        objection = f"A reviewer objects: {verdict}\n{texts.AGAIN}"
        history = [*messages, says("assistant", candidate.answer), says("user", objection)]
        revised = mended(asked, history, asked.chat.ask(history)[0], label, SIGNS)
        rounds = candidate.rounds + revised.rounds + 1
        candidate = (candidate if revised.error else revised)._replace(rounds=rounds)
    return candidate


PROPOSERS: dict[str, Callable[[Asked, Sequence[Row]], list[Candidate]]] = {
    "eureka": eureka,
    "icpl": icpl,
    "text2reward": text2reward,
    "auto_mc": auto_mc,
}
EPISODES = ("icpl", "text2reward", "auto_mc")  # whose people or analyser look at episodes
