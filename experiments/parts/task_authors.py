"""Who writes the tasks of agent.curriculum: a rule, the policy, or a chat server.

Each is (Author, the failed instructions of each request) -> the instructions that were written, of each request. One
of your own is named "module:function". The words of the requests are ours; those of the paper are in THUDM/WebRL
scripts/gen_task.py.
"""

import random
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from experiments.parts.chat import Chat, says
from experiments.parts.encoding import encode_prompts
from experiments.parts.setup import Setup
from rl_jax.core.types import Params
from rl_jax.experience.episode import Draw
from rl_jax.selection import evolving

WRITE = """You create tasks for an assistant that works on a web site. Here are tasks of this site:
{tasks}
Write new ones of the same kind and of about the same difficulty, put in other ways. Use only names that stand above. \
Put each new task between back-quotes: `task`."""
CHECK = """These are the rules of a web site:
{rules}
Can this task be done there: {task}
Give a reason, then answer [YES] or [NO]."""


class Author(NamedTuple):
    """What an author works with.

    Attributes:
      setup: of the run.
      player: of its episodes, a Player.
      params: of the policy.
      key: a typed key of this phase.
      step: of the run.
    """

    setup: Setup
    player: Any
    params: Params
    key: jax.Array
    step: int


def rule(author: Author, asked: Sequence[Sequence[str]]) -> list[list[str]]:
    """One instruction per request, whose words are those of the failed ones (evolving.similar_words)."""
    seed = np.asarray(jax.random.key_data(author.key)).tolist()
    return [[evolving.similar_words(texts, random.Random(f"{seed} {i}"))] for i, texts in enumerate(asked)]


def policy(
    author: Author, asked: Sequence[Sequence[str]], *, template: str = WRITE, tokens: int = 256
) -> list[list[str]]:
    """The policy writes: an answer per request, in one turn without an environment.

    Args:
      author: what it works with.
      asked: the instructions of each request.
      template: of the request, with {tasks}. A small model has to be shown it (envs.text.recorded, `written`) and reads
        the instructions one after the other if the template has one line.
      tokens: of an answer, at most.
    """
    between = "\n" if "\n" in template else ""
    records = [{"prompt": template.replace("{tasks}", between.join(texts))} for texts in asked]
    prompts, none = encode_prompts(author.setup, records), np.zeros(0, np.int32)
    draws = [Draw(i, 0, ids[mask], none, tokens, True) for i, (ids, mask) in enumerate(zip(*prompts, strict=True))]
    said = author.player.speak(author.params, draws, author.key)
    decode = author.setup.task.tokenizer.decode
    return [evolving.instructions_in(decode(ids.tolist())) for ids in said]


def chat(
    author: Author, asked: Sequence[Sequence[str]], *, url: str, model: str = "", rules: str = ""
) -> list[list[str]]:
    """A chat server writes, GPT-4o in the paper; with `rules` it also says of each task whether it can be done.

    Args:
      author: its step is part of the seed of the requests.
      asked: the instructions of each request.
      url: of the server.
      model: its name there; "" is the one that it serves.
      rules: what can and cannot be done on the site, in words; "": only the environment is asked.

    Raises:
      ValueError: if the server cannot be used.
    """
    chat, found = Chat(url, model=model), []
    for number, texts in enumerate(asked):
        request = WRITE.replace("{tasks}", "\n".join(f"- `{one}`" for one in texts))
        answer = chat.ask([says("user", request)], salt=author.step * len(asked) + number)[0]
        written = evolving.instructions_in(answer)
        if rules:
            judged = [chat.once([says("user", CHECK.format(rules=rules, task=one))]) for one in written]
            written = [one for one, said in zip(written, judged, strict=True) if "[YES]" in said.upper()]
        found.append(written)
    return found
