"""What a judge is, and the rows that its model reads.

A judge is made once per run, by a factory fn(setup, **keywords), and called with the judged rows of a step. Every
process holds all of them and calls every judge, so a judge may run programs on the whole mesh.
"""

import dataclasses
import itertools
import pathlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np
from ml_collections import ConfigDict

from experiments.parts.processes import to_host
from experiments.parts.prompt_limits import prompt_of
from experiments.parts.setup import POLICIES, Setup, fix_date, load_params, make_setup, model_config
from experiments.parts.stored import read_config
from experiments.parts.training import to_mesh
from rl_jax.core.types import Params, Rollout, TokenBatch
from rl_jax.experience.prompt import info_of
from rl_jax.preferences.encode import layout
from rl_jax.tokenizers import ChatTemplate, of_texts
from rl_jax.training import sharding

ROWS = ("", "tokens", "texts")
JUDGE_PROMPT = "judge_prompt"  # of a record's info: what the judge reads in place of the prompt


class Verdict(NamedTuple):
    """What a judge says about B rows.

    Attributes:
      rewards: float32 [B], a reward of each row; None if the judge rewards tokens.
      token_rewards: float32 [B, C], 0 outside the completions; None if the judge rewards rows.
      step_ends: bool [B, C], the last token of each step that token_rewards reward; None if they are not of steps.
      components: name -> float32 [B], further numbers to log.
    """

    rewards: np.ndarray | None
    token_rewards: np.ndarray | None = None
    step_ends: np.ndarray | None = None
    components: dict[str, np.ndarray] = {}


class Rows(Protocol):
    """What a judge reads of experiments.parts.judging.Judged."""

    rollout: Rollout
    records: list[dict]
    completions: list[str]


class Judge(Protocol):
    """Judges rows."""

    def __call__(self, judged: Rows, /) -> Verdict:
        """The verdict on all rows; equal in all processes."""


def groups_of(judged: Rows) -> list[range]:
    """The rows of each prompt, which are neighbours. Equal prompts with other answers are two."""
    asked = [(record["prompt"], record.get("info")) for record in judged.records]
    starts = [row for row, one in enumerate(asked) if not row or one != asked[row - 1]]
    return [range(*ends) for ends in itertools.pairwise([*starts, len(asked)])]


def judge_prompts(records: Sequence[dict]) -> list[str]:
    """What a judge reads as prompts: info["judge_prompt"] if a record has it, which the policy does not see."""
    return [info_of(record).get(JUDGE_PROMPT, record["prompt"]) for record in records]


def row_prompts(records: Sequence[dict], tokenizer: Any) -> list[str | list[dict]]:
    """What a model reads as prompts in rows of its own: judge_prompts, and chats as they are if it can read them."""
    reads_chats = hasattr(tokenizer, "encode_messages")
    return [
        prompt_of(record) if reads_chats and prompt == record["prompt"] else prompt
        for prompt, record in zip(judge_prompts(records), records, strict=True)
    ]


def load_run(setup: Setup, folder: str | pathlib.Path, what: str) -> tuple[Setup, Params]:
    """A language model to judge with, on the mesh of the run.

    Args:
      setup: of the run that the judge serves.
      folder: workdir of a run (its newest checkpoint), or a Hugging Face folder.
      what: the judge's name and field, for messages.

    Returns:
      (its setup, the model's params with adapters merged).

    Raises:
      FileNotFoundError: if the folder is neither.
    """
    folder = pathlib.Path(folder)
    if (folder / "checkpoints").is_dir() and (folder / "config.json").is_file():
        return run_of(setup, folder)
    if (folder / "config.json").is_file() and any(folder.glob("*.safetensors*")):
        config = ConfigDict(setup.config.to_dict())
        config.model.path, config.init_from = str(folder), ""
        config.model.lora.rank, config.rollout.mesh, config.rollout.devices = 0, "", "shared"
        own = make_setup(config, setup.task)
        theirs, template = (getattr(one.task.tokenizer, "template", None) for one in (setup, own))
        if isinstance(theirs, ChatTemplate) and isinstance(template, ChatTemplate):
            template.fix_date(theirs.when)  # of the run that it serves
        return own, own.init_params()
    raise FileNotFoundError(
        f"{what}={str(folder)!r} is neither the workdir of a run (config.json and checkpoints/) nor a Hugging Face "
        "folder (config.json and *.safetensors)"
    )


def load_asked(setup: Setup, folder: str | pathlib.Path, what: str, chat: bool | None = None) -> tuple[Setup, Params]:
    """load_run of a model that answers questions of the judge's own, which are no prompts of the policy.

    Args:
      setup: of the run that the judge serves.
      folder: as load_run takes it.
      what: the judge's name and field, for messages.
      chat: whether a Hugging Face folder is asked through its chat template; None: if it has one. A run's model is
        asked as that run asked it.

    Raises:
      FileNotFoundError: as load_run.
      ValueError: if chat is given for a run.
    """
    is_run = (pathlib.Path(folder) / "checkpoints").is_dir()
    if is_run and chat is not None:
        raise ValueError(f"{what}={str(folder)!r} is a run, which asks as it was trained: leave chat at None")
    if not is_run:
        config = ConfigDict(setup.config.to_dict())
        config.model.chat, config.model.template = ChatTemplate.is_in(folder) if chat is None else chat, ConfigDict()
        setup = setup._replace(config=config)
    return load_run(setup, folder, what)


def run_of(setup: Setup, folder: pathlib.Path) -> tuple[Setup, Params]:
    """(setup, merged params) of a run's newest checkpoint, on the mesh of the run that the judge serves."""
    own = setup_of(folder, setup.config.mesh)
    params = load_params(own, folder)
    return own, own.merged(params) if own.merged else params


def setup_of(folder: pathlib.Path, mesh: str | None = None) -> Setup:
    """The setup of a run's config.json. mesh: to place its params on; None: the run's own."""
    config = read_config(folder)
    if mesh is not None:
        config.mesh, config.rollout.mesh, config.rollout.devices = mesh, "", "shared"
    setup = make_setup(config)
    fix_date(setup, folder)
    return setup


def same_tokenizer(one: Any, other: Any) -> bool:
    """Whether two tokenizers give the same ids to the same texts, as far as their vocabularies tell.

    Chats are not compared: what reads ids or texts gets none.
    """
    one, other = map(of_texts, (one, other))
    if one is other:
        return True
    if type(one) is not type(other) or one.vocab_size != other.vocab_size or one.eos_ids != other.eos_ids:
        return False
    return all(one.token_text(token) == other.token_text(token) for token in range(one.vocab_size))


def need_same_model(mine: Setup, other: Setup, what: str) -> None:
    """Checks that the params of `other` can be read by the model of `mine`.

    Args:
      mine: setup of the model that reads.
      other: setup of the model that was trained.
      what: the other one, for messages.

    Raises:
      ValueError: if their architectures (names the fields that differ) or their tokenizers are not the same.
    """
    here, there = (dataclasses.asdict(model_config(setup)) for setup in (mine, other))
    unlike = [name for name in here if here[name] != there[name] and name not in (*POLICIES, "unroll")]
    if unlike:
        told = "; ".join(f"model.{name} is {there[name]!r} there and {here[name]!r} here" for name in unlike[:6])
        raise ValueError(f"{what} is of another architecture: {told}")
    if not same_tokenizer(mine.task.tokenizer, other.task.tokenizer):
        raise ValueError(f"{what} has another tokenizer: its token ids are other texts here")


def mode_of(setup: Setup, tokenizer: Any, rows: str, what: str, *, texts: bool = True) -> str:
    """How a judge reads the rows: "tokens", the ids that were sampled, or "texts", encoded again.

    Args:
      setup: of the run.
      tokenizer: the judge's.
      rows: "tokens", "texts", or "" for tokens if the tokenizers are the same and texts if not.
      what: the judge, for messages.
      texts: whether the judge can read texts. One that rewards tokens cannot.

    Raises:
      ValueError: if rows is unknown, or the judge cannot read the rows.
    """
    if rows not in ROWS:
        raise ValueError(f"{what}: rows={rows!r} is none of {', '.join(map(repr, ROWS))}")
    same = same_tokenizer(setup.task.tokenizer, tokenizer)
    if rows == "texts" and not texts:
        raise ValueError(f"{what} rewards tokens, so it reads the sampled token ids: leave rows empty")
    if not same and (rows == "tokens" or not texts):
        remedy = "set rows='texts'" if texts else "train it with the policy's tokenizer, or use a judge of whole texts"
        raise ValueError(f"{what} has another tokenizer than the policy, and cannot read its token ids: {remedy}")
    return rows or ("tokens" if same else "texts")


def sampled_ids(judged: Rows) -> list[list[int]]:
    """The ids of each completion, its EOS included."""
    mask = np.asarray(judged.rollout.completion_mask)
    tokens = np.asarray(judged.rollout.batch.tokens)[:, -mask.shape[1] :]
    return [row[keep].tolist() for row, keep in zip(tokens, mask, strict=True)]


def prompt_ids(judged: Rows, tokenizer: Any) -> list[list[int]]:
    """The ids of each row's prompt: as the policy read them, or of the judge's own prompt."""
    batch, length = judged.rollout.batch, judged.rollout.completion_mask.shape[1]
    tokens, segments = (np.asarray(x)[:, :-length] for x in (batch.tokens, batch.segment_ids))
    return [
        row[real != 0].tolist() if own == record["prompt"] else tokenizer.encode(own, bos=True)
        for own, record, row, real in zip(judge_prompts(judged.records), judged.records, tokens, segments, strict=True)
    ]


def token_rows(judged: Rows, tokenizer: Any) -> TokenBatch:
    """The rows as they were sampled, [B, P + C], with the judge's own prompts where records have one."""
    batch = TokenBatch(*(np.asarray(x) for x in judged.rollout.batch[:3]))
    prompts = judge_prompts(judged.records)
    if all(own == record["prompt"] for own, record in zip(prompts, judged.records, strict=True)):
        return batch
    rows = list(zip(prompt_ids(judged, tokenizer), sampled_ids(judged), strict=True))
    return lay_out(rows, tokenizer, judged.rollout.completion_mask.shape[1])


def lay_out(rows: Sequence[tuple[list[int], list[int]]], tokenizer: Any, completion_length: int) -> TokenBatch:
    """(prompt ids, completion ids) as a TokenBatch of numpy arrays; prompts are padded to a power of two."""
    longest = max(len(prompt) for prompt, _ in rows)
    width = 1 << max(longest - 1, 0).bit_length()
    arrays = layout(rows, tokenizer.pad_id, (width,), completion_length)
    return TokenBatch(arrays["tokens"], arrays["positions"], arrays["segment_ids"])


def in_batches(setup: Setup, compiled: Callable, params: Params, rows: Any, size: int) -> Any:
    """Applies compiled(params, rows) to `size` rows at a time, on the mesh.

    Args:
      setup: the judge's.
      compiled: a jitted function, row by row.
      params: its first argument.
      rows: pytree of numpy arrays [B, ...].
      size: rows per call, rounded up to what the mesh divides; the last call is filled up.

    Returns:
      numpy arrays [B, ...], whole in every process.
    """
    count, shards = len(jax.tree.leaves(rows)[0]), sharding.row_shards(setup.mesh)
    size, parts = -(-size // shards) * shards, []
    for start in range(0, count, size):
        chosen = np.resize(np.arange(start, min(start + size, count)), size)
        part = to_mesh(setup, jax.tree.map(lambda x, i=chosen: np.asarray(x)[i], rows))
        found = jax.tree.map(np.asarray, to_host(compiled(params, part)))
        kept = min(size, count - start)
        parts.append(jax.tree.map(lambda x, n=kept: x[:n], found))
    return jax.tree.map(lambda *xs: np.concatenate(xs), *parts)
