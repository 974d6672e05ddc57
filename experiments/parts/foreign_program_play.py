"""A kind of config.foreign in which the policy proposes programs of Python and solves them (Absolute Zero).

Named in a config by its import path, "experiments.parts.foreign_program_play:propose_programs".
"""

import functools

import jax
import numpy as np

from experiments.parts.foreign_self_play import draw, judged_rows, mixed, play_metrics
from experiments.parts.foreign_stage import Candidates, Stage
from experiments.parts.judging import Judged
from rl_jax.rewards import code
from rl_jax.selection import program_play

BUFFER = "program_play"  # of the memory
TEMPLATES = {"deduction": "deduce? {example}\n", "abduction": "abduce? {example}\n", "induction": "inputs? {program}\n"}


def propose_programs(
    stage: Stage,
    judged: Judged,
    wanted: np.ndarray,
    *,
    num_inputs: int = 4,
    longest: int = 48,
    unlearnable: float = -0.5,
    sandbox: str = "",
    cpu_s: float = 1.0,
    keep: int = 64,
) -> Candidates | None:
    """The whole step becomes proposals and solutions of deductions, abductions and inductions.

    Rows and advantages as in foreign_self_play:propose_and_solve. Each group of proposals has one kind; the first kind
    is drawn per step. A proposal that cannot be asked is replaced by a remembered deduction; the memory, whose programs
    the proposers' prompts show, begins with the identity function, and grows by deductions and abductions.

    Args:
      stage: of the step.
      judged: the step's rows; all of them are replaced.
      wanted: bool [N], all of them (at_most=G).
      num_inputs: of a proposed induction.
      longest: characters of a solver's prompt.
      unlearnable: reward of a proposal that is solved always or never.
      sandbox: a backend of sandbox.start.make; "": the first that holds.
      cpu_s: seconds of CPU per program.
      keep: proposals that are remembered.

    Raises:
      ValueError: if not all groups are wanted, G does not divide N, or there are several processes.
      SandboxError: if there is no sandbox, or it failed.
    """
    size, groups = stage.group_size, stage.num_groups
    if not wanted.all() or groups % size:
        raise ValueError(
            f"propose_programs takes all groups (at_most={size}, share=1), and sample.prompts_per_step={groups} must "
            f"be a multiple of sample.group_size={size}: each group of proposals needs that many groups of solutions"
        )
    if jax.process_count() > 1:
        raise ValueError("propose_programs runs in one process: time limits of programs may differ between hosts")
    run = functools.partial(code.outputs, sandbox=sandbox, cpu_s=cpu_s)
    limits = dict(num_inputs=num_inputs, longest=longest)
    known, count = stage.memory.answers.get(BUFFER)["successes"] or [program_play.SEED], groups // size
    first, *places = np.asarray(jax.random.randint(jax.random.fold_in(stage.key, 2), (groups + 1,), 0, 2**30))
    examples = [known[place % len(known)] for place in places]
    numbers = (first + np.arange(count)) % len(program_play.KINDS)
    # Proposal n is row n: N / G groups of G, each of one prompt; the prompts after these are not read.
    prompts = [_prompt(numbers[n % count], examples[n % count]) for n in range(groups)]
    proposing, records_p, texts_p = draw(stage, judged, prompts, 3)
    of_proposal = np.repeat(numbers, size)
    shown = np.repeat(np.array(examples[:count], dtype=object), size)
    questions = [
        program_play.question(text, program_play.KINDS[kind], run, program=example.rpartition("#")[0], **limits)
        for text, kind, example in zip(texts_p, of_proposal, shown, strict=False)  # of N * G rows the first N
    ]
    asked = [
        found or program_play.question(examples[n], "deduction", run, **limits) or program_play.SPARE
        for n, found in enumerate(questions)
    ]
    solving, records_s, texts_s = draw(stage, judged, [one.prompt for one in asked], 4)
    of_solver = _solved(texts_s, asked, run)
    accuracy = (of_solver == 1).reshape(groups, size).mean(axis=1)
    of_proposer = program_play.proposer_rewards(questions, accuracy, unlearnable=unlearnable)
    valid = np.array([found is not None for found in questions])
    made = mixed(
        stage,
        judged_rows(proposing, records_p, texts_p, of_proposer),
        judged_rows(solving, records_s, texts_s, of_solver),
        valid,
        asked=[program_play.KINDS.index(one.kind) for one in asked],
        proposed=of_proposal,
        num_kinds=len(program_play.KINDS),
    )
    for text, found in zip(texts_p, questions, strict=False):
        if found and found.kind != "induction":
            stage.memory.answers.add_success(BUFFER, text, keep=keep)
    metrics = play_metrics(valid, accuracy, of_proposer, of_solver)
    return Candidates(made, np.ones((groups, size), bool), foreign=False, metrics=metrics)


def _prompt(kind: int, example: str) -> str:
    """What a proposer reads."""
    return TEMPLATES[program_play.KINDS[kind]].format(example=example, program=example.rpartition("#")[0])


def _solved(texts: list[str], asked: list[program_play.Question], run: program_play.Run) -> np.ndarray:
    """float [N * G]: rewards of G answers to each question; equal ones are run once."""
    answers: dict[tuple[int, str], float] = {}
    places = [(row * len(asked) // len(texts), text) for row, text in enumerate(texts)]
    for place, text in places:
        if (place, text) not in answers:
            answers[place, text] = program_play.solver_reward(text, asked[place], run)
    return np.array([answers[place] for place in places])
