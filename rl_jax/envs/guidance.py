"""Goals in words for an agent: a large language model names them, a small one tells it about the player (RLAdapter).

    u_t  = 1 / (1 + exp(-10 (cos(e(deeds), e(goals)) - .1)))       how well the player follows, from its last deeds
    c    = adapter("Player sees: ... status: ... past action: ... past sub-goals: ... comprehension score: u_t")
    g    = decide("Player sees: ... Analysis: c")                   some of the sub-goals that there are
    s'_t = (s_t, e(g))                                              what the policy and the critic read

Every `interval` steps of an episode the goals are asked for anew; e is an embedding of texts. The agent is trained by
PPO on the environment's own rewards. Both models are functions (text) -> text on the host; those of `camp` and
`crafter` are scripted. They are called as pure functions: give one reply per text. What the adapter read and said may
be recorded, for experiments.sft.

Source: arXiv 2309.17176 (RLAdapter; AdaRefiner in later versions) and its code (PKU-RL/AdaRefiner, utils.py: l_func,
compute_l_score, llm_template, gpt_template; models/lm.py: AdaLM), which has Llama-2 7B as the adapter, GPT-4 to decide,
a MiniLM for embeddings, 100 steps between goals, and one environment. There the adapter is fine-tuned, in stages, on
the analyses that it gave, whose prompts have the score (sft.py). Here e counts words, and goals of a finished episode
are dropped. The paper's text was not read beyond its abstract.
"""

import functools
import json
from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from rl_jax.core.vectors import unit
from rl_jax.data.append_lines import append_lines
from rl_jax.envs.protocol import Box, Discrete, Vector
from rl_jax.envs.worlds.spoken import embed

EPS = 1e-12  # of lengths


class Speakers(NamedTuple):
    """What is said about an environment, and by whom.

    Attributes:
      deeds: names of its A actions.
      goals: the C sub-goals that there are.
      describe: (an observation, numpy float32 [F]) -> (what the player sees, its status), in words.
      adapter: (prompt) -> its analysis of the player, the small model; None: no analysis.
      decide: (prompt) -> a text that names goals, the large model. Either may have `many` (see `replies`).
    """

    deeds: tuple[str, ...]
    goals: tuple[str, ...]
    describe: Callable[[np.ndarray], tuple[str, str]]
    adapter: Callable[[str], str] | None
    decide: Callable[[str], str]


class Guided(NamedTuple):
    """State of `guided`.

    Attributes:
      state: the Vector's own.
      goals: bool [B, C], those that are pursued.
      deeds: float32 [B, A], how often each was done since goals were asked for.
      last: int32 [B], the last deed of the episode; -1 before the first.
      score: float32 [B], u of the last question.
      time: int32 [B], steps of the episode.
      turn: int32 [B], questions so far.
    """

    state: Any
    goals: chex.Array
    deeds: chex.Array
    last: chex.Array
    score: chex.Array
    time: chex.Array
    turn: chex.Array


def understanding(deeds: chex.Array, goals: chex.Array, *, steepness: float = 10.0, middle: float = 0.1) -> chex.Array:
    """1 / (1 + exp(-steepness (cos(d, g) - middle))): how well deeds follow goals, float [...].

    Source: arXiv 2309.17176, its code (utils.py: l_func, compute_l_score).

    Args:
      deeds: float [..., E], the embedding of what was done; 0 has the cosine 0.
      goals: float [..., E], that of the goals.
      steepness: 10 in the code.
      middle: the cosine whose score is a half; .1 in the code.
    """
    chex.assert_equal_shape([deeds, goals])
    return jax.nn.sigmoid(steepness * (jnp.sum(unit(deeds, EPS) * unit(goals, EPS), axis=-1) - middle))


def named(text: str, goals: tuple[str, ...]) -> np.ndarray:
    """Which goals a text names, bool [C]; a goal whose name is a part of another one's is not named by that."""
    found = np.zeros(len(goals), bool)
    for i in sorted(range(len(goals)), key=lambda i: -len(goals[i])):
        found[i] = goals[i] in text
        text = text.replace(goals[i], "|")
    return found


def replies(speaker: Callable, texts: list[str]) -> list[str]:
    """What somebody says to each text: all at once if they have a method `many`, else one by one."""
    many = getattr(speaker, "many", None)
    return list(many(texts)) if many else [speaker(text) for text in texts]


def prompts(speakers: Speakers, observation: np.ndarray, last: int, goals: np.ndarray, score: float) -> tuple[str, str]:
    """(what the adapter reads, what the large model reads before the analysis).

    Args:
      speakers: for the words.
      observation: float32 [F].
      last: the last deed, or -1.
      goals: bool [C], the past ones.
      score: u.
    """
    sees, status = speakers.describe(observation)
    deed = speakers.deeds[last] if last >= 0 else ""
    past = ", ".join(goal for goal, on in zip(speakers.goals, goals, strict=True) if on)
    told = f"Player sees: <{sees}>. Player status: <{status}>. Past action: <{deed}>. Past sub-goals: <{past}>."
    asked = f"{told} Available sub-goals are: <{', '.join(speakers.goals)}>."
    return f"{told} Player's comprehension score: <{score:.3f}>.", asked


def guided(env: Vector, speakers: Speakers, *, interval: int = 100, record: str = "") -> Vector:
    """`env` with the embedding of goals in words after each observation; `told` has the score of understanding.

    Args:
      env: observations are vectors and actions whole numbers, one for each deed.
      speakers: who says what.
      interval: steps between questions; an episode begins with one.
      record: a file that gets {"prompt", "completion"} of the adapter, a JSON line each, with the world, its turn and
        the score (of what it said there before); not those of `reset`, which every start of a run asks. "": none.

    Raises:
      ValueError: if the actions are not the deeds, observations are images, or interval < 1.
    """
    if not isinstance(env.action_space, Discrete) or env.action_space.n != len(speakers.deeds):
        raise ValueError(f"env.guide: {len(speakers.deeds)} deeds are no names of the actions {env.action_space}")
    if len(env.observation_space.shape) != 1 or interval < 1:
        raise ValueError(
            f"env.guide: interval={interval} must be 1 or more, and observations vectors, not of "
            f"{env.observation_space.shape}"
        )
    texts = embed((*speakers.deeds, *speakers.goals))
    words_of_deeds, words_of_goals = texts[: len(speakers.deeds)], texts[len(speakers.deeds) :]
    count, size = env.num_envs, texts.shape[1]

    def answer(observations, last, goals, scores, due, turns, *, recorded: bool) -> np.ndarray:
        observations, last, scores, due, turns = (np.asarray(x) for x in (observations, last, scores, due, turns))
        found, rows = np.array(goals), np.flatnonzero(due)
        asked = [prompts(speakers, observations[i], int(last[i]), found[i], float(scores[i])) for i in rows]
        said = replies(speakers.adapter, [prompt for prompt, _ in asked]) if speakers.adapter else []
        analyses = [f" Analysis: <{text}>." for text in said] or [""] * len(rows)
        questions = [question + more for (_, question), more in zip(asked, analyses, strict=True)]
        for i, text in zip(rows, replies(speakers.decide, questions), strict=True):
            found[i] = named(text, speakers.goals)
        if recorded and said:
            _record(record, rows, [prompt for prompt, _ in asked], said, scores, turns)
        return found

    def ask(state: Guided, observation: chex.Array, due: chex.Array, *, recorded: bool = bool(record)) -> Guided:
        """The state with new goals where they are due."""
        own = understanding(state.deeds @ words_of_deeds, state.goals.astype(jnp.float32) @ words_of_goals)
        score, answered = jnp.where(due, own, state.score), functools.partial(answer, recorded=recorded)
        shape = jax.ShapeDtypeStruct((count, len(speakers.goals)), jnp.bool_)
        told = (observation, state.last, state.goals, score, due, state.turn)
        call = lambda told: jax.pure_callback(answered, shape, *told, vmap_method="sequential")  # noqa: E731
        goals = jax.lax.cond(jnp.any(due), call, lambda told: told[2], told)
        deeds = jnp.where(due[:, None], 0.0, state.deeds)
        return state._replace(goals=goals, score=score, deeds=deeds, turn=state.turn + due)

    def seen(observation: chex.Array, goals: chex.Array) -> chex.Array:
        return jnp.concatenate([observation, unit(goals.astype(jnp.float32) @ words_of_goals, EPS)], axis=1)

    def reset(key: chex.PRNGKey):
        inner, observation = env.reset(key)
        none = jnp.zeros((count, len(speakers.goals)), bool)
        deeds, zeros = jnp.zeros((count, len(speakers.deeds))), jnp.zeros(count, jnp.int32)
        state = Guided(inner, none, deeds, zeros - 1, jnp.zeros(count), zeros, zeros)
        state = ask(state, observation, jnp.ones(count, bool), recorded=False)
        return state, seen(observation, state.goals)

    def step(state: Guided, action: chex.Array, drawn: Any):
        inner, observation, now = env.step(state.state, action, drawn)
        done = now.done
        now = now._replace(observation=seen(now.observation, state.goals))
        time = jnp.where(done, 0, state.time + 1)
        deeds = state.deeds + jax.nn.one_hot(action, len(speakers.deeds))
        state = Guided(
            inner,
            state.goals & ~done[:, None],
            jnp.where(done[:, None], 0.0, deeds),
            jnp.where(done, -1, action).astype(jnp.int32),
            state.score,
            time,
            state.turn,
        )
        state = ask(state, observation, time % interval == 0)
        return state, seen(observation, state.goals), now

    low, high = env.observation_space
    space = Box(np.append(low, np.zeros(size, np.float32)), np.append(high, np.ones(size, np.float32)))
    return env._replace(reset=reset, step=step, observation_space=space, told=lambda state: {"understood": state.score})


def _record(
    path: str, rows: np.ndarray, asked: list[str], said: list[str], scores: np.ndarray, turns: np.ndarray
) -> None:
    """Appends what the adapter read and said in these worlds, a JSON line each.

    A run that was killed repeats turns after its checkpoint: of lines with the same world and turn the last is right.
    """
    found = [
        {"prompt": prompt, "completion": text, "world": i, "turn": int(turns[i]), "score": round(float(scores[i]), 4)}
        for i, prompt, text in zip(rows.tolist(), asked, said, strict=True)
    ]
    append_lines(path, map(json.dumps, found))
