"""A kind of config.foreign in which the policy asks and answers its own questions (Absolute Zero).

Named in a config by its import path, "experiments.parts.foreign_self_play:propose_and_solve".
"""

from collections.abc import Sequence

import jax
import numpy as np

from experiments.parts.encoding import encode_prompts
from experiments.parts.foreign_stage import Candidates, Stage, put, rephrased
from experiments.parts.judging import Judged
from rl_jax.core.types import Rollout
from rl_jax.rewards.pool import RewardResult
from rl_jax.selection import foreign_rows, self_play

BUFFER = "self_play"  # of the memory
SEED = "1+1"


def propose_and_solve(
    stage: Stage,
    judged: Judged,
    wanted: np.ndarray,
    *,
    digits: int = 2,
    operands: int = 3,
    templates: tuple[str, str] = ("{example}==", "={example}=="),
    keep: int = 64,
) -> Candidates | None:
    """The whole step becomes proposals and solutions: N / G groups propose, the others solve what was proposed.

    Each of the N proposals is solved G times, which gives its learnability; N / G groups of solutions, those of
    proposals that cannot be asked first, make room for the proposals; further ones of them answer "1+1=". Rewards are
    whitened by task and role (TRR++), so that they are advantages: algorithm.advantage is no_baseline. The examples in
    the proposers' prompts are proposals of steps before, from a single seed on: no data is read. Two rollouts of the
    step.

    Args:
      stage: of the step.
      judged: the step's rows; all of them are replaced.
      wanted: bool [N], all of them (at_most=G).
      digits: most digits of a number in a proposal.
      operands: most numbers.
      templates: of the proposers' prompts, for deduction and for abduction, with the place example.
      keep: proposals that are remembered.

    Raises:
      ValueError: if not all groups are wanted, or G does not divide N.
    """
    size, groups = stage.group_size, stage.num_groups
    if not wanted.all() or groups % size:
        raise ValueError(
            f"propose_and_solve takes all groups (at_most={size}, share=1), and sample.prompts_per_step={groups} must "
            f"be a multiple of sample.group_size={size}: each group of proposals needs that many groups of solutions"
        )
    known, count = stage.memory.answers.get(BUFFER)["successes"] or [SEED], groups // size
    places = np.asarray(jax.random.randint(jax.random.fold_in(stage.key, 2), (groups,), 0, len(known)))
    kinds = [self_play.KINDS[group % len(self_play.KINDS)] for group in range(count)]
    asked = [
        templates[self_play.KINDS.index(kinds[group % count])].format(example=known[place])
        for group, place in enumerate(places)
    ]
    proposing, records_p, texts_p = draw(stage, judged, asked, 3)
    of_proposal = np.repeat(kinds, size)
    proposals = texts_p[:groups]
    questions = [
        self_play.question(text, kind, digits=digits, operands=operands)
        for text, kind in zip(proposals, of_proposal, strict=True)
    ]
    spare = self_play.question(SEED, "deduction", digits=digits, operands=operands)
    solving, records_s, texts_s = draw(stage, judged, [(found or spare).prompt for found in questions], 4)
    answers = [(found or spare).answer for found in questions for _ in range(size)]
    of_solver = self_play.solver_rewards(texts_s, answers)
    accuracy = (of_solver == 1).reshape(groups, size).mean(axis=1)
    of_proposer = self_play.proposer_rewards(proposals, questions, accuracy)

    valid = np.array([found is not None for found in questions])
    of_question = [kind if found else "deduction" for kind, found in zip(of_proposal, questions, strict=True)]
    made = mixed(
        stage,
        judged_rows(proposing, records_p, texts_p, of_proposer),
        judged_rows(solving, records_s, texts_s, of_solver),
        valid,
        asked=[self_play.KINDS.index(kind) for kind in of_question],  # the spare question is a deduction
        proposed=roles_of_proposers(kinds, size),
        num_kinds=len(self_play.KINDS),
    )
    for text in (text for text, found in zip(proposals, valid, strict=True) if found):
        stage.memory.answers.add_success(BUFFER, text, keep=keep)
    metrics = play_metrics(valid, accuracy, of_proposer, of_solver)
    return Candidates(made, np.ones((groups, size), bool), foreign=False, metrics=metrics)


def play_metrics(valid: np.ndarray, accuracy: np.ndarray, of_proposer: np.ndarray, of_solver: np.ndarray) -> dict:
    """What is logged of a step's play.

    Args:
      valid: bool [N], proposals that could be asked.
      accuracy: float [N], share of right answers to each.
      of_proposer: float [N], rewards of the proposals.
      of_solver: float [N * G], rewards of the solutions.
    """
    return {
        "valid": float(valid.mean()),
        "solved": float(accuracy[valid].mean()) if valid.any() else 0.0,
        "proposer_reward": float(of_proposer.mean()),
        "solver_reward": float(of_solver.mean()),
    }


def judged_rows(rollout: Rollout, records: list[dict], texts: list[str], rewards: np.ndarray) -> Judged:
    """N * G rows with rewards of our own; fewer rewards than rows are followed by 0."""
    padded = np.zeros(len(texts), np.float32)
    padded[: len(rewards)] = rewards
    return Judged(rollout, records, texts, RewardResult(padded, {}, 0, 0, None))


def mixed(
    stage: Stage,
    proposing: Judged,
    solving: Judged,
    valid: np.ndarray,
    *,
    asked: Sequence[int],
    proposed: np.ndarray,
    num_kinds: int,
) -> Judged:
    """N groups of solutions, in N / G of which proposals take the place; rewards are advantages by role (TRR++).

    Args:
      stage: of the step.
      proposing: N * G rows, of which the first N are proposals.
      solving: N * G rows, G answers to each proposal.
      valid: bool [N], proposals that could be asked; solutions of others make room first.
      asked: int [N], the kind that each group of solutions answers.
      proposed: int [N], the kind of each proposal.
      num_kinds: a proposer's role is its kind plus this.
    """
    size, groups = stage.group_size, stage.num_groups
    leaving = np.argsort(valid, kind="stable")[: groups // size]
    targets = (leaving[:, None] * size + np.arange(size)).ravel()
    roles = np.repeat(asked, size)
    roles[targets] = num_kinds + proposed
    both = put(solving, proposing, targets, np.arange(groups), stage.ends["pad_id"])
    lengths = both.rollout.completion_mask.sum(axis=1)
    advantages = self_play.whitened_by_role(both.result.rewards, lengths, roles)
    return both._replace(result=both.result._replace(rewards=advantages))


def roles_of_proposers(kinds: list[str], size: int) -> np.ndarray:
    """int [n]: the kind of each row of the proposing groups."""
    return np.repeat([self_play.KINDS.index(kind) for kind in kinds], size)


def draw(stage: Stage, judged: Judged, prompts: list[str], fold: int) -> tuple[Rollout, list[dict], list[str]]:
    """(rollout of N * G rows, their records, their texts) of N prompts of our own."""
    records = [
        rephrased(record, lambda _, text=text: text)
        for record, text in zip(stage.records(judged), prompts, strict=True)
    ]
    mine = encode_prompts(stage.setup, [records[i] for i in stage.own_prompts])
    drawn = stage.draw(*mine, jax.random.fold_in(stage.key, fold))
    decode = stage.setup.task.tokenizer.decode
    texts = [decode(ids).strip() for ids in foreign_rows.sampled_of(drawn)[0]]
    return drawn, [record for record in records for _ in range(stage.group_size)], texts
