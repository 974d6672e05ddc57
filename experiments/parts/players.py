"""config.agent: the environment of a run's episodes, their limits, and the engine that samples their turns."""

import contextlib
import hashlib
import random
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from experiments.parts import (
    episode_replay,
    evolving_tasks,
    outcome_model,
    own_judgement,
    plan_memory,
    policy,
    processes,
    step_model,
    turn_entropies,
    turn_rewards,
    turn_signals,
)
from experiments.parts.encoding import whole_text
from experiments.parts.sampler import Attaching
from experiments.parts.setup import Setup, sampling_of
from rl_jax.core.binding import bind, needs
from rl_jax.core.types import Params
from rl_jax.envs import text
from rl_jax.envs.text.world import World
from rl_jax.experience.branching import Moments
from rl_jax.experience.episode import OVERFLOW, Ask, Draw, Limits
from rl_jax.experience.episodes import Environments, play, probing
from rl_jax.experience.partners import PARTNER
from rl_jax.experience.trajectory import Trajectory
from rl_jax.rollout.lm.continuous import Engine
from rl_jax.rollout.lm.episodes import EngineSampler, TwoSamplers
from rl_jax.tokenizers.dialogue import REWRITES, dialogue_of
from rl_jax.training import sharding

ONE_ANSWER = "one_answer"
PARTNERS = ("", "self", "reference")
PREFILL_ROWS = 16  # contexts of later turns that are read together
# What grpo has and episodes do not: (field, the value that is none, why).
UNSUPPORTED = (
    ("rollout.engine.name", "continuous", "turns end at different times, and only this engine resumes rows"),
    ("rollout.long_prompts", "stop", "an environment writes the prompts"),
    ("eval.completion_length", 0, "held-out episodes have the limits of the training's"),
    ("rollout.window", 0, "an episode ends in the step in which it begins"),
    ("algorithm.action_mask.top_p", 1.0, "its sampler answers once"),
    ("sample.references", 0, "only the policy plays episodes"),
    ("sample.memory.last", False, "the rows of one visit are not those of the next"),
    ("foreign", {}, "only the policy plays episodes"),
    ("judge", {}, "learned judges read a prompt and one answer"),
)


def is_single(config) -> bool:
    """Whether the run's episodes have one turn and no environment of their own."""
    return config.agent.env.fn == ONE_ANSWER


def limits_of(config) -> Limits:
    """The limits of config.agent, within the rows of config.rollout."""
    agent, row = config.agent, config.rollout.completion_length
    whole = max(config.rollout.prompt_buckets) + row
    return Limits(
        turns=1 if is_single(config) else agent.max_turns,
        context=min(agent.max_context or whole, whole),
        row=row,
        turn_tokens=agent.max_turn_tokens,
        tokens=agent.max_tokens,
        observation=agent.max_observation,
        overflow=agent.overflow,
        seconds=agent.max_seconds,
    )


def check(config) -> None:
    """Checks config.agent, and what else a run of episodes cannot have.

    Raises:
      ValueError: naming every field that is wrong, one a line.
    """
    processes.one_process("config.agent")
    agent, problems = config.agent, []
    for name, wanted, why in UNSUPPORTED:
        value = config
        for part in name.split("."):
            value = value[part]
        if (value.to_dict() if hasattr(value, "to_dict") else value) != wanted:
            problems.append(f"{name}={value!r} does not work in experiments.agents, only {wanted!r}: {why}")
    counts = ("max_turn_tokens", "max_tokens", "max_context", "max_observation")
    negative = [name for name in (*counts, "max_seconds") if agent[name] < 0]
    problems += [f"agent.{name}={agent[name]!r} must be 0 (no limit of its own) or more" for name in negative]
    if agent.max_turns < 1:
        problems.append(f"agent.max_turns={agent.max_turns!r} must be 1 or more")
    for name, known in (("overflow", OVERFLOW), ("on_rewrite", REWRITES)):
        if agent[name] not in known:
            problems.append(f"agent.{name}={agent[name]!r} is none of {', '.join(known)}")
    if agent.overflow == "drop_oldest" and config.packing.mode != "padded":
        problems.append(f"packing.mode={config.packing.mode!r}: rows with several segments (overflow) need 'padded'")
    if 0 < agent.max_context <= max(config.rollout.prompt_buckets):
        problems.append(f"agent.max_context={agent.max_context} leaves no token after the widest of prompt_buckets")
    if config.rollout.stop_strings and not is_single(config):
        problems.append("rollout.stop_strings: an answer of the environment may contain one; let EOS end turns")
    if config.eval.stop_strings and not is_single(config):
        problems.append("eval.stop_strings: an answer of the environment may contain one; let EOS end turns")
    if "greedy_rewards" in needs(turn_signals.advantage_of(config)[1]):
        problems.append(f"{turn_signals.said(config)} needs greedy episodes, which nothing here plays")
    if is_single(config):  # evaluations of one answer do not read these
        given = [name for name in counts if agent[name] > 0]
        problems += [f"agent.{name}={agent[name]!r}: rollout.completion_length limits one answer; 0" for name in given]
    try:
        env = environment_of(config)()
    except (ValueError, TypeError) as error:
        problems.append(f"agent.env: {error}")
    else:
        with probing(env):
            problems += _partner_problems(config, env) + evolving_tasks.problems(config, env)
            problems += outcome_model.problems(config, env) + own_judgement.problems(config, env)
            problems += _not_told(config, env) + turn_signals.problems(config, env)
    problems += episode_replay.problems(config) + step_model.problems(config) + plan_memory.problems(config)
    problems += turn_rewards.problems(config)
    if problems:
        raise ValueError("\n".join(problems))


def _partner_problems(config, env) -> list[str]:
    agent, found = config.agent, []
    if agent.partner not in PARTNERS:
        found.append(f"agent.partner={agent.partner!r} is none of {', '.join(map(repr, PARTNERS))}")
    if agent.partner and not hasattr(env, "partner"):
        found.append(f"agent.partner={agent.partner!r}: agent.env={agent.env.fn!r} has one side only")
    if agent.partner and (agent.branching.fn or agent.state_rollouts):
        found.append(f"agent.partner={agent.partner!r}: its dialogue is not copied: no branching, no state_rollouts")
    if agent.partner and agent.max_seconds:
        found.append(f"agent.max_seconds={agent.max_seconds!r}: the clock would count what agent.partner samples; 0")
    return found


def _not_told(config, env) -> list[str]:
    """What the run asks of an environment that does not go with it; zeros would stand for counts without a word."""
    name, problems, asked = config.agent.env.fn, [], policy.turn_counts(config)
    if getattr(env, "rewrites", False) and config.packing.mode != "padded":
        problems.append(f"packing.mode={config.packing.mode!r}: agent.env={name!r} begins segments anew: 'padded'")
    if getattr(env, "rewrites", False) and config.agent.overflow == "drop_oldest":
        problems.append(
            f"agent.overflow='drop_oldest': agent.env={name!r} begins segments anew, and an overflow would bring back "
            "the first prompt, which it has replaced; 'end' or 'cut'"
        )
    if "state_keys" in needs(turn_signals.advantage_of(config)[1]) and not hasattr(env, "state_key"):
        problems.append(f"{turn_signals.said(config)} compares states: agent.env={name!r} has no state_key()")
    counted = env.counts() if isinstance(env, World) else asked  # others show only in a step what they count
    missing = [count for count in asked if count not in counted]
    return problems + [
        f"config.algorithm asks for {policy.TURN}{count}: agent.env={name!r} counts {', '.join(counted)}"
        for count in missing
    ]


def environment_of(config):
    """() -> a new environment of config.agent.env."""
    return bind(config.agent.env.to_dict(), text)


class Player:
    """Plays the episodes of a run's prompts, many at once.

    Args:
      setup: of the run.
      episodes: the most that one call plays; as many are sampled at once, unless rollout.engine.slots says less.
      settings: config.rollout or config.eval, for its sampling rule.
      envs: of another Player, which closes them; None: its own.
    """

    def __init__(self, setup: Setup, episodes: int, settings=None, envs: Environments | None = None):
        config, tokenizer = setup.config, setup.task.tokenizer
        self._config, self._limits = config, limits_of(config)
        make = environment_of(config)
        self.envs, self._is_warm = envs or Environments(make), False
        with probing(make()) as example:
            tools = getattr(example, "tools", None)
        self._dialogues = dialogue_of(tokenizer, tools, on_rewrite=config.agent.on_rewrite)
        self._longest_prompt = max(config.rollout.prompt_buckets)
        length, mesh = self._longest_prompt + config.rollout.completion_length, (setup.rollout or setup).mesh
        slots = config.rollout.engine.slots or episodes
        self._slots = slots
        several = {} if self._limits.turns == 1 else _several(slots)
        self._make_engine = lambda: Engine(
            sharding.model_on_mesh(setup.model, mesh),
            slots=slots,
            prompt_length=self._longest_prompt if self._limits.turns == 1 else length - 1,
            length=length,
            sampling=sampling_of(settings or config.rollout),
            eos_ids=tokenizer.eos_ids,
            rows_sharding=sharding.batch_sharding(mesh) if mesh.size > 1 else None,
            decode_text=whole_text(tokenizer),
            **several,
        )
        self._engine, self._partners = self._make_engine(), None
        held = self._limits.turns > 1 and not config.agent.partner and slots >= episodes  # a partner needs slots, too
        self._hold = held and mesh.size == 1
        self.older = None  # params of the partners, if they are not the policy's
        self._params = Attaching(setup, lambda params: params)
        self._choose, self._moments, self._seeds = turn_signals.chooser(config), None, []
        self._entropies, self._judged = turn_entropies.reader(setup), own_judgement.reader(setup, make)
        self._asked = plan_memory.asked(config)
        self.plans: list = []  # those that solved their tasks, if the rule that branches asks for a memory
        self.replayed: dict = {}  # what was read of earlier steps (turn_replay, familiar_episodes)
        self._leader = self  # whose `older` counts: evaluations with a rule of their own have the run's partners

    def play(
        self, params: Params, records: Sequence[dict], key: jax.Array, *, group_size: int, training: bool = False
    ) -> list[Trajectory]:
        """The episodes of `records`, group_size of each, those of a record side by side.

        Args:
          params: of the policy.
          records: with "id" or not.
          key: decides everything that is random, the environments too.
          group_size: G.
          training: whether episodes branch as config.agent.branching says, and state_values may follow.
        """
        branches = training and self._choose is not None
        kept = Moments() if branches or training and self._config.agent.state_rollouts else None
        shares = turn_signals.shares(self._config) if branches else [group_size]
        groups: list[list[Trajectory]] = [[] for _ in records]
        self._moments, self._seeds = kept, [seed_of(key, group) for group in range(len(records))]
        rests = [{} for _ in records]
        for number, share in enumerate(shares):
            if number and "imagined" in self._asked:
                self._imagine(params, records, groups, rests, jax.random.fold_in(key, plan_memory.ROOM + number))
            asks, told = [], self._told(params, groups, rests) if number else []
            for group, record in enumerate(records):
                seed, points = self._seeds[group], [None] * share
                if number:
                    points = self._choose(groups[group], share, random.Random(seed + number), **told[group])
                for sample, point in enumerate(points, len(groups[group])):
                    after = None if point is None else (group * group_size + point[0], point[1])
                    asks.append(Ask(group * group_size + sample, record, group, sample, seed, after))
            played = self._run(params, asks, key, kept)
            for trajectory in self._judged(params, records, played) if self._judged and training else played:
                groups[trajectory.group].append(trajectory)
        return [trajectory for group in groups for trajectory in group]

    def _told(self, params: Params, groups: list[list[Trajectory]], rests: list[dict]) -> list[dict[str, Any]]:
        """What the rule that chooses branches is told of each group, beside its episodes."""
        known = {"memory": self.plans} if "memory" in self._asked else {}
        told = [known | ({"imagined": rest} if "imagined" in self._asked else {}) for rest in rests]
        if self._entropies is None:
            return told
        # Raw params: the reader's score attaches adapters itself.
        found = iter(self._entropies(params, [one for group in groups for one in group]))
        return [more | {"entropies": [next(found) for _ in group]} for more, group in zip(told, groups, strict=True)]

    def _imagine(self, params: Params, records: Sequence[dict], groups, rests: list[dict], key: jax.Array) -> None:
        """Adds to each group's dict the length of the whole plan that the model imagines from each of its plans on."""
        asked = plan_memory.to_imagine(records, self._seeds, groups, rests, self._config.sample.group_size)
        for start in range(0, len(asked), self._slots):
            part = asked[start : start + self._slots]
            played = self._run(params, [ask for ask, _ in part], key, self._moments, keep=False)
            for (ask, plan), one in zip(part, played, strict=True):
                self.envs.drop(ask.number)
                if one.status != "error":
                    rests[ask.group][plan] = len(one.turns)

    def state_values(
        self, params: Params, records: Sequence[dict], trajectories: Sequence[Trajectory], key: jax.Array
    ) -> list[list[float]]:
        """V of the state before each turn of the episodes that `play` has just given, of config.agent.state_rollouts.

        Rows whose environment failed get zeros, which nothing reads, and their states are not asked for.

        Args:
          params: of the policy.
          records: as in `play`.
          trajectories: of `play`, with training=True.
          key: of these further episodes.

        Returns:
          One number per turn of each trajectory: the mean return to go of fresh episodes from the same state.
        """
        most, asks, owners = self._config.agent.state_rollouts, [], []
        first: dict[int, int] = {}  # the row of each group that asks for the value of its prompt
        for row, trajectory in enumerate(trajectories):
            if trajectory.status == "error":
                continue
            group = trajectory.group
            for turn in range(len(trajectory.turns)):
                of_parent = trajectory.parent >= 0 and turn <= trajectory.shared
                if of_parent or (turn == 0 and first.setdefault(group, row) != row):
                    continue  # another row's state
                for _ in range(most):
                    number = turn_signals.ROOM + len(asks)
                    place = (row, turn) if turn else None
                    asks.append(Ask(number, records[group], group, len(asks), self._seeds[group], place))
                    owners.append((row, turn))
        returns: dict[tuple[int, int], list[float]] = {}
        for start in range(0, len(asks), self._slots):
            part = asks[start : start + self._slots]
            played = self._run(params, part, key, self._moments, keep=False)
            for ask, owner, found in zip(part, owners[start:], played, strict=False):
                self.envs.drop(ask.number)
                if found.status != "error":
                    returns.setdefault(owner, []).append(sum(turn.reward for turn in found.turns[owner[1] :]))
        values: list[list[float]] = []
        for row, trajectory in enumerate(trajectories):
            parent = row - trajectory.sample + trajectory.parent
            earlier = values[parent][: trajectory.shared + 1] if trajectory.parent >= 0 else []
            own = [
                float(np.mean(returns.get((row if turn else first.get(trajectory.group, row), turn), [0.0])))
                for turn in range(len(earlier), len(trajectory.turns))
            ]
            values.append(earlier[: len(trajectory.turns)] + own)
        return values

    def answers(self, trajectories: Sequence[Trajectory]) -> list[str | None]:
        """The right answer of each episode that `play` has just given; None if its environment failed."""
        size = 1 + max(trajectory.sample for trajectory in trajectories)
        return [
            None if t.status == "error" else str(self.envs.get(t.group * size + t.sample).right_answer())
            for t in trajectories
        ]

    def speak(self, params: Params, draws: Sequence[Draw], key: jax.Array) -> list[np.ndarray]:
        """One turn of the policy for each of `draws`, whose numbers are 0, 1, ..., without an environment. int32 [n].

        Args:
          params: of the policy.
          draws: what was said so far, and the most tokens.
          key: of what is sampled.
        """
        params, found = self._params(params), {}
        sampler = EngineSampler(self._engine, params, key)
        try:
            sampler.submit(draws)
            while len(found) < len(draws):
                found |= {turn.number: turn.tokens for turn in sampler.step()}
        finally:
            sampler.close()
        return [found[number] for number in range(len(draws))]

    def _run(
        self, params: Params, asks: Sequence[Ask], key: jax.Array, kept: Moments | None, *, keep: bool = True
    ) -> list[Trajectory]:
        params = self._params(params)
        if not self._is_warm:
            self._engine.warm_up(params, hold=self._hold)
            self._is_warm = True
        fits, stops = len(asks) <= self._slots, tuple(self._config.rollout.stop_strings)
        sampler = EngineSampler(self._engine, params, key, stop_strings=stops, hold=self._hold and fits)
        if self._leader.older is not None:
            older = self._params(self._leader.older)
            if self._partners is None:
                self._partners = self._make_engine()
                self._partners.warm_up(older)
            sampler = TwoSamplers(sampler, EngineSampler(self._partners, older, key), PARTNER)
        try:
            return play(
                asks, self.envs, self._dialogues, sampler, self._limits, longest_prompt=self._longest_prompt,
                saved=kept, keep=keep, partners=bool(self._config.agent.partner),
            )  # fmt: skip
        finally:
            sampler.close()

    def close(self) -> None:
        """Closes the environments."""
        self.envs.close()

    def _cache_size(self) -> int:
        return self._engine.compile_count() + (self._partners.compile_count() if self._partners else 0)


def _several(slots: int) -> dict[str, int]:
    """Options of an engine that reads a context of its own for every row."""
    return {"prefill_rows": min(PREFILL_ROWS, slots), "stored_prompts": 2 * min(PREFILL_ROWS, slots)}


def seed_of(key: jax.Array, group: int) -> int:
    """The seed of a group's environments, below 2**31."""
    words = np.asarray(jax.random.key_data(key)).tobytes() + group.to_bytes(8, "little")
    return int.from_bytes(hashlib.blake2b(words, digest_size=4).digest(), "little") >> 1


def with_player(setup: Setup, programs):
    """`programs` with a Player in place of its sampler; unchanged if the config has no episodes."""
    if "agent" not in setup.config:
        return programs
    sample = setup.config.sample
    return programs._replace(generate=Player(setup, sample.prompts_per_step * sample.group_size))


def closing(generate):
    """A context that closes a Player's environments at its end; of another sampler nothing."""
    return contextlib.closing(generate) if isinstance(generate, Player) else contextlib.nullcontext()


def eval_player(setup: Setup, player: Player) -> Player:
    """The Player of evaluations: the same one, if config.eval samples as config.rollout does."""
    config = setup.config
    if sampling_of(config.eval) == sampling_of(config.rollout) or is_single(config):
        return player
    other = Player(setup, config.eval.batch_size * config.eval.samples_per_prompt, config.eval, player.envs)
    other._leader = player
    return other
