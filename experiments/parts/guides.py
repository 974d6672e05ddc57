"""Speakers that are language models, for config.env.guide (rl_jax.envs.guidance, RLAdapter 2309.17176).

config.env.guide = dict(
    fn="experiments.parts.guides:served", world="camp", adapter=..., decide=..., interval=4, record=""
)
"""

from collections.abc import Mapping, Sequence
from typing import Any

from experiments.parts import text_models
from experiments.parts.text_models import Ask
from rl_jax.core.binding import bind
from rl_jax.envs import speakers
from rl_jax.envs.guidance import Speakers

SCRIPTED = "scripted"


class Speaker:
    """A language model as guidance calls it: one reply per text, many texts at a time.

    Args:
      ask: texts -> answers.
    """

    def __init__(self, ask: Ask):
        self.ask = ask

    def __call__(self, text: str) -> str:
        """The reply."""
        return self.many([text])[0]

    def many(self, texts: Sequence[str]) -> list[str]:
        """The replies."""
        return self.ask(texts)


def served(*, world: str, adapter: Mapping[str, Any] | str | None, decide: Mapping[str, Any] | str) -> Speakers:
    """The words of a world, spoken by language models.

    Args:
      world: a function of rl_jax.envs.speakers, whose sub-goals and descriptions are taken: "camp" or "crafter".
      adapter: the small model, a function of experiments.parts.text_models (dict(fn="by_server", url=...)) or
        "my_module:make"; "scripted": the world's own; None: no analysis.
      decide: the large model, in the same way; not None.

    Raises:
      ValueError: if one of them is unknown, or there is nobody to decide.
    """
    if decide is None:
        raise ValueError(
            "env.guide.decide=None: somebody has to name the goals, 'scripted' or dict(fn='by_server', ...)"
        )
    own = bind(world, speakers)()
    spoken = {name: _speaker(spec, getattr(own, name)) for name, spec in (("adapter", adapter), ("decide", decide))}
    return own._replace(**spoken)


def _speaker(spec, scripted):
    if spec is None:
        return None
    return scripted if spec == SCRIPTED else Speaker(bind(spec, text_models)())
