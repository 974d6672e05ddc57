"""What every entry of config.foreign may say (experiments.parts.foreign_rows), and whether an entry is right."""

import importlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

from ml_collections import ConfigDict

from rl_jax.core.binding import bind


class Rule(NamedTuple):
    """What every entry may say; foreign_rows explains the fields."""

    at_most: int = 0
    above: float = 0.0
    share: float = 1.0
    warmup_steps: int = 0
    count: int = 1
    replace: str = "worst"
    only_right: bool = False
    rest: str = "keep"
    behavior: str = "own"


CHOICES = {"replace": ("worst", "last", "group"), "rest": ("keep", "drop"), "behavior": ("own", "drawn")}


def rule_and_kind(spec: ConfigDict) -> tuple[Rule, Callable]:
    """An entry's Rule, and its kind with the keywords bound.

    Raises:
      ValueError: if the kind or a keyword is unknown, or a choice is.
    """
    keywords = spec.to_dict()
    rule = Rule(**{name: keywords.pop(name) for name in Rule._fields if name in keywords})
    for name, known in CHOICES.items():
        if getattr(rule, name) not in known:
            raise ValueError(f"{name}={getattr(rule, name)!r} is none of {', '.join(known)}")
    if rule.count < 1 or not 0 <= rule.share <= 1:
        raise ValueError(f"count={rule.count} must be 1 or more, and share={rule.share} from 0 to 1")
    # Not imported above: it needs what checks this module, too.
    return rule, bind(keywords, importlib.import_module("experiments.parts.foreign_kinds"))


def problems(config: ConfigDict) -> Iterator[str]:
    """What is wrong with config.foreign, one line per entry."""
    for name, spec in config.foreign.items():
        if not isinstance(spec, ConfigDict) or "fn" not in spec:
            yield f"foreign.{name}={spec!r} must be dict(fn='demonstrations', ...)"
            continue
        try:
            rule, _ = rule_and_kind(spec)
        except ValueError as error:
            yield f"foreign.{name}: {error}"
            continue
        if rule.replace != "group" and rule.count > config.sample.group_size:
            yield f"foreign.{name}.count={rule.count} must be at most sample.group_size={config.sample.group_size}"
        if spec.get("hint_in_loss") is False and spec.get("train_on") == "original" and config.packing.mode != "padded":
            yield (
                f"foreign.{name}.hint_in_loss=False needs packing.mode='padded': packed rows leave out what has no "
                "loss, and the completion would be read without its hint"
            )
