"""The episodes of one training step: played in config.agent.env, judged, and as rows of a batch.

    python -m experiments.agents --config=configs/agents.py:calculator

A row is an episode: its sampled tokens are trained on, what the environment says is not. Its reward is the sum over its
turns plus, if the task or config.reward has one, the reward of the model's last message. Everything after that is what
experiments.grpo does with single answers; an environment of one turn gives the same rows, bit for bit.
"""

import contextlib
from collections.abc import Callable, Sequence

import jax
import numpy as np

from experiments.parts import episode_replay, outcome_model, plan_memory, policy, rollout_mesh, turn_signals
from experiments.parts.clock import Clock
from experiments.parts.encoding import whole_text
from experiments.parts.failures import first_failure
from experiments.parts.judging import Judged, joined_columns, make_evaluate, sample_rows
from experiments.parts.players import Player, check, eval_player, is_single
from experiments.parts.rewards import Rewards, Rows
from experiments.parts.row_rewards import paid_at_the_end, without_errors
from experiments.parts.run import Run, Step
from experiments.parts.sample_groups import Collected, Collector
from experiments.parts.setup import Setup
from experiments.parts.turn_rewards import make_turn_rewards
from experiments.parts.turn_signals import Signals
from rl_jax.core.binding import needs
from rl_jax.core.types import Params, Rollout
from rl_jax.data import pipeline
from rl_jax.experience.trajectory import Trajectory
from rl_jax.rewards.pool import RewardResult
from rl_jax.rollout.lm.episodes import as_rollout
from rl_jax.stats import pass_hat_k
from rl_jax.tokenizers.characters import NOT_WRITTEN

ENDS = ("done", "turns", "tokens", "context", "error")


class EpisodeCollector(Collector):
    """A Collector whose samples are episodes.

    Args:
      setup: of the run.
      rewards: scores last messages; or what make_rewards gives if nothing does.
      prompts: as in Collector.
      programs: policy.PolicyPrograms whose `generate` is a Player.
      loop: the run, whose recorded successes config.agent.replay brings back; None: none are.
    """

    def __init__(self, setup: Setup, rewards, prompts, programs, loop: Run | None = None):
        super().__init__(setup, rewards if isinstance(rewards, Rewards) else None, prompts, programs)
        self._seen: list[Trajectory] = []
        self._loop, self._replayed = loop, 0
        self._successes = episode_replay.successes(setup.config, loop.workdir) if loop else None
        if self._successes and isinstance(rewards, Rewards):
            raise ValueError("agent.replay: let the environment pay all of the reward; what is recorded is paid once")
        self._plans = plan_memory.memory_of(setup, loop.workdir if loop else None)
        self._signals, self._with_turn_rewards = Signals(setup, programs.generate), make_turn_rewards(setup)
        if isinstance(rewards, Rewards) and "state_values" in turn_signals.asked(setup.config):
            raise ValueError(
                "agent.state_rollouts: what the task or config.reward pays for the last message is no part of the "
                "returns of fresh episodes; let the environment pay all of it"
            )

    def __call__(self, params: Params, key: jax.Array, clock: Clock, reference: Params | None = None) -> Collected:
        """As Collector, with the metrics of the episodes, those that were dropped included."""
        self._seen, self._replayed = [], 0
        if self._setup.config.agent.partner == "reference":
            self._samplers.generate.older = reference
        if self._plans is not None:
            self._samplers.generate.plans = self._plans.of(self._loop.step - 1 if self._loop else 0)  # earlier steps
        collected = super().__call__(params, key, clock, reference)
        told = {"episode/replayed": self._replayed / len(self._seen)} if self._successes else {}
        if self._plans is not None:
            told |= self._plans.metrics(self._seen, self._setup.config.sample.group_size)
        told |= outcome_model.agreement_of(collected.judged)
        return collected._replace(metrics=collected.metrics | episode_metrics(self._seen) | told)

    def _sample(self, generate: Player, records, params, key, own_prompts, clock: Clock) -> Judged:
        size = self._setup.config.sample.group_size
        trajectories = generate.play(params, records, key, group_size=size, training=True)
        check_components(self._setup.config, trajectories)
        self._seen += trajectories
        replayed = []
        if self._successes:
            trajectories, replayed = self._successes.fill(trajectories, size, self._loop.step)
            self._replayed += len(replayed)
        rollout = self._signals(params, records, trajectories, rows_of(self._setup, trajectories), key)
        clock.lap("rollout_s")
        judged = judge_episodes(self._setup, self._rewards, trajectories, rollout, records, size)
        for place in replayed:
            judged.records[place]["replayed"] = True
        judged = self._with_turn_rewards(judged)
        clock.lap("reward_s")
        return judged


def check_components(config, trajectories: Sequence[Trajectory]) -> None:
    """Raises ValueError if the advantage reads the reward's components, which what the environment pays is not."""
    paid = next((trajectory for trajectory in trajectories if trajectory.reward), None)
    if paid is not None and "components" in needs(turn_signals.advantage_of(config)[1]):
        raise ValueError(
            f"{turn_signals.said(config)} reads components of the reward, and the {paid.reward} that "
            f"agent.env={config.agent.env.fn!r} paid for prompt {paid.prompt_id!r} is none: take an advantage of whole "
            "rewards, or give all of the reward with config.reward.terms"
        )


def rows_of(setup: Setup, trajectories: Sequence[Trajectory]) -> Rollout:
    """The Rollout of trajectories, its prompts in the smallest bucket that holds them.

    Raises:
      RuntimeError: if the environments of all of them failed.
    """
    failed = [trajectory for trajectory in trajectories if trajectory.status == "error"]
    if len(failed) == len(trajectories):
        raise RuntimeError(
            f"the environment failed in all {len(failed)} episodes, twice each. The first, of prompt "
            f"{failed[0].prompt_id!r}: {failed[0].error}{_remedy(failed[0].error)}"
        )
    settings = setup.config.rollout
    longest = max(len(trajectory.segments[0][0].ids) for trajectory in trajectories if trajectory.segments)
    return as_rollout(
        trajectories,
        prompt_length=min(bucket for bucket in settings.prompt_buckets if bucket >= longest),
        completion_length=settings.completion_length,
        pad_id=setup.task.tokenizer.pad_id,
        observations=setup.config.agent.train_observations,
        counts=policy.turn_counts(setup.config),
    )


def _remedy(error: str) -> str:
    """What to do about an environment that writes what the task's own characters cannot; "" for other errors."""
    if NOT_WRITTEN not in error:
        return ""
    return (
        ". The tokenizer is that of config.task: an environment with problems of its own takes "
        "--config=configs/agents.py:own, which has all of ASCII; a model's folder, --config.model.path=FOLDER, brings "
        "its own tokenizer"
    )


def judge_episodes(
    setup: Setup,
    score: Rewards | None,
    trajectories: Sequence[Trajectory],
    rollout: Rollout,
    records: list[dict],
    group_size: int,
) -> Judged:
    """The rows with their rewards; what scores the last message adds to the last turn's reward.

    A row whose environment failed gets the mean reward of the others of its group, whose mean stays what it is. A std,
    or a mean of other rows, counts it as one more such reward; credit per turn leaves the row out.

    Args:
      setup: of the run.
      score: Rows -> RewardResult, or None.
      trajectories: B of them.
      rollout: of these.
      records: one per group.
      group_size: of the rows.

    Returns:
      Judged, whose B records have their trajectory as `episode`.
    """
    records = [records[i // group_size] | {"episode": trajectory} for i, trajectory in enumerate(trajectories)]
    decode = setup.task.tokenizer.decode
    last = [t.sampled()[-1].ids if t.turns else np.zeros(0, np.int32) for t in trajectories]
    completions = [decode(ids.tolist()) for ids in last]
    numbers = episode_numbers(trajectories)
    zeros = np.zeros(len(records), np.float32)
    result = RewardResult(zeros, {}, 0, 0, None, zeros > 0)
    if score is not None:
        result = score(Rows(rollout, records, completions, group_size))
        first = first_failure(result, [record["prompt"] for record in records], completions)
        score.failures.see(result, first, setup.config.reward)
    if "correct" in numbers and "correct" not in result.components:
        result = result._replace(components=result.components | {"correct": numbers["correct"]})
    own = np.asarray([trajectory.reward for trajectory in trajectories], np.float32)
    turns = rollout.turns._replace(rewards=paid_at_the_end(rollout, result.rewards))
    errors = np.asarray([trajectory.status == "error" for trajectory in trajectories])
    rewards = without_errors(result.rewards + own, errors, group_size)
    judged = Judged(rollout._replace(turns=turns), records, completions, result._replace(rewards=rewards))
    return score.finish(judged) if score is not None else judged


def episode_numbers(trajectories: Sequence[Trajectory]) -> dict[str, np.ndarray]:
    """What the environments counted: name -> float32 [B], the sum over each episode's turns."""
    names = sorted({name for trajectory in trajectories for turn in trajectory.turns for name in turn.numbers})
    return {
        name: np.asarray([sum(turn.numbers.get(name, 0.0) for turn in t.turns) for t in trajectories], np.float32)
        for name in names
    }


def episode_metrics(trajectories: Sequence[Trajectory], prefix: str = "episode/") -> dict[str, float]:
    """Turns, tokens, how episodes ended, and what the environments counted, as means over episodes."""
    count = len(trajectories)
    metrics = {
        "turns": np.mean([len(trajectory.turns) for trajectory in trajectories]),
        "observed_tokens": np.mean([trajectory.count("observation") for trajectory in trajectories]),
        "segments": np.mean([len(trajectory.segments) for trajectory in trajectories]),
    }
    metrics |= {f"end/{end}": sum(trajectory.status == end for trajectory in trajectories) / count for end in ENDS}
    metrics |= {name: column.mean() for name, column in episode_numbers(trajectories).items()}
    return {f"{prefix}{name}": float(value) for name, value in metrics.items()}


def conversation(setup: Setup, trajectory: Trajectory) -> list[dict]:
    """An episode as rows of a report: who wrote what, whether it is trained on, and what a turn earned."""
    text, rows, turn = whole_text(setup.task.tokenizer), [], 0
    for segment, spans in enumerate(trajectory.segments):
        for span in spans:
            row = {"by": span.kind, "text": text(span.ids.tolist()), "tokens": len(span.ids), "segment": segment}
            if span.kind == "sampled":
                of_turn = trajectory.turns[turn]
                row |= {"turn": turn, "reward": of_turn.reward, "numbers": of_turn.numbers}
                turn += 1
            trained = span.kind == "sampled" or (span.kind == "observation" and setup.config.agent.train_observations)
            rows.append(row | {"trained": trained and trajectory.status != "error"})
    return rows


def episode_rows(setup: Setup, judged: Judged, split: str, limit: int) -> list[dict]:
    """Rows of samples.jsonl with their episodes."""
    rows = sample_rows(judged, split, limit)
    told = zip(rows, (record["episode"] for record in judged.records), strict=False)
    return [row | {"status": t.status, "error": t.error, "conversation": conversation(setup, t)} for row, t in told]


def make_episode_evaluate(setup: Setup, rewards, player: Player):
    """Makes evaluate(params) -> (metrics, sample rows) on held-out prompts, as judging.make_evaluate.

    eval/pass@1 is the mean of the component `correct`, which the task's reward or the environment gives; with K samples
    per prompt, eval/pass^k is the chance that k of them are all right (k = 2, 4, ... and K).

    Args:
      setup: of the run.
      rewards: as in EpisodeCollector.
      player: samples with config.eval's rule.
    """
    score = rewards if isinstance(rewards, Rewards) else None
    if is_single(setup.config):
        return make_evaluate(setup, score)
    config, source, key = setup.config.eval, setup.task.data_source("test"), jax.random.key(setup.config.seed + 1)

    def evaluate(params):
        params, results, rows, seen = rollout_mesh.place(setup.rollout, params), [], [], []
        samples = config.samples_per_prompt
        for index, records in enumerate(pipeline.eval_batches(source, config.batch_size, config.num_prompts)):
            played = player.play(params, records, jax.random.fold_in(key, index), group_size=samples)
            judged = judge_episodes(setup, score, played, rows_of(setup, played), records, samples)
            lengths = {"completion_length": judged.rollout.completion_mask.sum(axis=1)}
            results.append(judged.result._replace(components=judged.result.components | lengths))
            rows += episode_rows(setup, judged, "eval", setup.config.log.sample_rows - len(rows))
            seen += played
        columns = joined_columns(results)
        metrics = {name: column.mean(dtype=np.float64) for name, column in columns.items()}
        if "correct" in metrics:
            metrics["pass@1"] = metrics.pop("correct")
            if samples > 1:  # tau-bench's: k of a prompt's samples, and all are right
                right = np.sum(columns["correct"].reshape(-1, samples) >= 1, axis=1)
                metrics |= {f"pass^{k}": pass_hat_k(samples, right, k).mean() for k in sizes_of(samples)}
        return {f"eval/{name}": value for name, value in metrics.items()} | episode_metrics(seen, "eval/episode/"), rows

    return evaluate


def sizes_of(samples: int) -> list[int]:
    """2, 4, 8, ... below `samples`, and `samples`."""
    return sorted({2**power for power in range(1, samples.bit_length()) if 2**power <= samples} | {samples})


def make_any_evaluate(setup: Setup, rewards):
    """Makes evaluate(params) of any program's config: of episodes for experiments.agents, else judging's."""
    if "agent" not in setup.config:
        return make_evaluate(setup, rewards)
    check(setup.config)
    settings = setup.config.eval
    player = Player(setup, settings.batch_size * settings.samples_per_prompt, settings)
    evaluate = make_episode_evaluate(setup, rewards, player)

    def evaluate_and_close(params):
        with contextlib.closing(player):  # an environment may have opened something
            return evaluate(params)

    return evaluate_and_close


def make_collector(setup: Setup, rewards, prompts, programs) -> Collector:
    """The EpisodeCollector of a config with episodes, or a Collector of single answers."""
    return (EpisodeCollector if "agent" in setup.config else Collector)(setup, rewards, prompts, programs)


def make_loop_evaluate(setup: Setup, rewards, generate):
    """Makes a loop's evaluate(params): of episodes if its `generate` is a Player, else judging.make_evaluate."""
    if not isinstance(generate, Player):
        return make_evaluate(setup, rewards)
    return make_episode_evaluate(setup, rewards, eval_player(setup, generate))


def look(loop: Run, step: Step, setup: Setup, evaluate: Callable, params: Params, judged: Judged) -> dict:
    """Evaluates after the step's updates, and logs episodes. Returns the evaluation's metrics.

    Args:
      loop: its logger.
      step: of the loop.
      setup: of the run.
      evaluate: params -> (metrics, sample rows).
      params: of the policy.
      judged: the step's rows.
    """
    metrics, samples = evaluate(params)
    rows = episode_rows(setup, judged, "train", setup.config.log.sample_rows)
    loop.log.samples(step.number, samples + rows)
    return metrics
