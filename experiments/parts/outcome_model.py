"""config.agent.turn_rewards=dict(fn="outcome", path=...): WebRL's outcome model pays, and nobody else does.

    R = [P(YES) > P(NO)] of a frozen language model that reads instruction, actions and newest page (arXiv 2411.02337)

It is paid at an episode's last sampled token, in the place of all that the environment has paid: recorded episodes,
the critic's targets, what is replayed, and the tasks that failed (agent.curriculum) know its word alone. The
environment's is only logged: reward/outcome/site, and outcome/accuracy, precision, recall of the model's word against
it. Evaluations have the environment's word. The model is trained by experiments.sft on what experiments.tools.outcomes
has played (configs/preferences/outcome_model.py), so it has a tokenizer of its own.
"""

import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from experiments.parts import turn_signals
from experiments.parts.judges.base import in_batches, load_run
from experiments.parts.judging import Judged
from experiments.parts.row_rewards import paid_at_the_end, without_errors
from experiments.parts.setup import Setup
from rl_jax.core.binding import bind
from rl_jax.core.packed_rows import hidden_at
from rl_jax.core.types import Params, TokenBatch
from rl_jax.data import pipeline
from rl_jax.envs import text
from rl_jax.experience.episodes import probing
from rl_jax.preferences import outcomes
from rl_jax.runs.run_record import is_complete

KIND = "outcome"
FIELDS = {"path"}
BATCH = 64  # questions per forward pass
WORD, SITE = "outcome/word", "outcome/site"  # components: the model's verdict, the environment's
MODEL = "configs/preferences/outcome_model.py"


def problems(config, env: Any) -> list[str]:
    """What does not go with an outcome model, one text each; [] if the run has none. env: one environment."""
    found, agent = [], config.agent
    if agent.get("turn_rewards", {"fn": ""})["fn"] != KIND:
        return found
    if not hasattr(env, "instruction"):
        found.append(f"agent.turn_rewards.fn={KIND!r}: agent.env={agent.env.fn!r} has no instruction()")
    if config.reward.terms:
        found.append(f"agent.turn_rewards.fn={KIND!r} is the only reward: reward.terms must be empty")
    if agent.get("replay", {"fn": ""})["fn"] == "successes":
        found.append(f"agent.turn_rewards.fn={KIND!r}: agent.replay.fn='successes' goes by the site's word")
    if known := turn_signals.asked(config) & {"answer_probs", "prior_answer_probs"}:
        found.append(f"agent.turn_rewards.fn={KIND!r}: {', '.join(sorted(known))}: of the site's answer")
    if agent.branching.fn:
        found.append(f"agent.turn_rewards.fn={KIND!r}: agent.branching.fn={agent.branching.fn!r} may read the site's")
    return found


class OutcomeModel:
    """The reward of a run's episodes.

    Args:
      setup: of the run.
      path: workdir of a run of experiments.sft, or a Hugging Face folder.

    Raises:
      FileNotFoundError: if the folder is neither.
      ValueError: if the run has not finished, or YES and NO begin with the same token.
    """

    def __init__(self, setup: Setup, *, path: str):
        self._make, self._read = bind(setup.config.agent.env.to_dict(), text), load_reader(setup, path)
        self._size, self._decode = setup.config.sample.group_size, setup.task.tokenizer.decode

    def __call__(self, judged: Judged) -> Judged:
        """The rows with the model's word as their only reward, and the environment's among the components."""
        episodes = [record["episode"] for record in judged.records]
        failed = np.array([one.status == "error" or not one.segments for one in episodes])
        with probing(self._make()) as env:
            seen = [
                outcomes.seen_of(one, env.instruction(record), self._decode)
                for one, record, error in zip(episodes, judged.records, failed, strict=True)
                if not error
            ]
        word = np.zeros(len(episodes), np.float32)
        word[~failed] = outcomes.verdicts(self._read([outcomes.question(one) for one in seen]))
        site = (judged.result.rewards > outcomes.RIGHT).astype(np.float32)
        rollout = judged.rollout
        unpaid = rollout._replace(turns=rollout.turns._replace(rewards=np.zeros_like(rollout.turns.rewards)))
        turns = rollout.turns._replace(rewards=paid_at_the_end(unpaid, word))
        # Prompts hear of `correct` before they hear of the reward, and it is the environment's.
        kept = {name: x for name, x in judged.result.components.items() if name.rpartition("/")[2] != "correct"}
        rewards = without_errors(word, failed, self._size)
        result = judged.result._replace(rewards=rewards, components=kept | {WORD: word, SITE: site})
        return judged._replace(rollout=rollout._replace(turns=turns), result=result)


def agreement_of(judged: Judged) -> dict[str, float]:
    """outcome/accuracy, precision and recall of a step's words; {} without an outcome model."""
    columns = judged.result.components
    if WORD not in columns:
        return {}
    here = np.array([record["episode"].status != "error" for record in judged.records])
    found = outcomes.agreement(columns[WORD][here] > outcomes.RIGHT, columns[SITE][here] > outcomes.RIGHT)
    return {f"{KIND}/{name}": value for name, value in found.items()}


def load_reader(setup: Setup, path: str | pathlib.Path) -> Callable[[Sequence[str]], np.ndarray]:
    """Makes read(questions) -> log P of YES and of NO as the next token, float [N, 2].

    Args:
      setup: of the run that the model serves.
      path: as in OutcomeModel.

    Raises:
      FileNotFoundError: if the folder is none; the message has the command that trains a model.
      ValueError: if the run has not finished, or YES and NO begin with the same token.
    """
    is_run = (pathlib.Path(path) / "run.json").is_file()
    if is_run and not is_complete(path):
        raise ValueError(f"agent.turn_rewards.path={str(path)!r} is a run that has not finished: end it first")
    try:
        # Of a run the length of its questions is its own; the policy's, which a bare model has, would cut the intent.
        return make_reader(*load_run(setup, path, "agent.turn_rewards.path"), cut=is_run)
    except FileNotFoundError as error:
        train = f"python -m experiments.sft --config={MODEL} --workdir={path}"
        raise FileNotFoundError(f"{error}; train one with {train}") from error


def make_reader(own: Setup, params: Params, *, cut: bool = True) -> Callable[[Sequence[str]], np.ndarray]:
    """The same of a model and its merged params. cut: questions that are too long keep their end; else ValueError."""
    tokenizer: Any = own.task.tokenizer
    first = np.array([tokenizer.encode_continuation(word)[0] for word in (outcomes.YES, outcomes.NO)])
    if first[0] == first[1]:
        raise ValueError(f"{outcomes.YES} and {outcomes.NO} begin with the same token {first[0]}: take another model")

    def log_probs(params: Params, rows: TokenBatch) -> jax.Array:
        hidden = hidden_at(own.model.apply, params, rows, lambda x: x[:, -1:])
        return jax.nn.log_softmax(own.model.unembed(params, hidden)[:, 0], axis=-1)[:, first]

    compiled, buckets = jax.jit(log_probs), own.config.rollout.prompt_buckets

    def read(questions: Sequence[str]) -> np.ndarray:
        if not questions:
            return np.zeros((0, 2), np.float32)
        tokens, real = pipeline.encode_prompts(tokenizer, questions, buckets=buckets, cut=cut)
        positions = (np.maximum(np.cumsum(real, axis=1) - 1, 0) * real).astype(np.int32)
        return in_batches(own, compiled, params, TokenBatch(tokens, positions, real.astype(np.int32)), BATCH)

    return read
