"""Reward terms: named functions that a config composes into one reward (config.reward.terms, rl_jax.rewards.compose).

Two kinds, told apart by their parameters:

    fn(prompt, completion, info, **keywords) -> float or {"reward": float, part: float}  an item term
    fn(completions, *, prompts, infos, ..., **keywords) -> floats            a group term: the G samples of a prompt

Item terms run in the worker processes of rl_jax.rewards.pool under its time limit; group terms run in the program. A
group term names what it needs of GROUP, or keys of `info`; with **kwargs it gets all of them, so that a reward function
of TRL works as it is. No jax.
"""

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from rl_jax.rewards import replies

# Short names that a config may use, as dict(fn="SHORT NAME", weight=1.0, **keywords).
TERMS = {
    "actions.by_type": "rl_jax.rewards.actions:by_type",
    "boxes.click": "rl_jax.rewards.boxes:click",
    "boxes.detection": "rl_jax.rewards.boxes:detection",
    "boxes.exploring_click": "rl_jax.rewards.boxes:exploring_click",
    "boxes.near": "rl_jax.rewards.boxes:near",
    "boxes.overlap": "rl_jax.rewards.boxes:overlap",
    "brevity.ease": "rl_jax.rewards.brevity:ease",
    "brevity.short_and_right": "rl_jax.rewards.brevity:short_and_right",
    "claims.facts": "rl_jax.rewards.claims:facts",
    "claims.triples": "rl_jax.rewards.claims:triples",
    "code.run_time": "rl_jax.rewards.code:run_time",
    "code.score": "rl_jax.rewards.code:score",
    "confidence.calibrated": "rl_jax.rewards.confidence:calibrated",
    "decisions.mistake": "rl_jax.rewards.decisions:mistake",
    "decisions.only": "rl_jax.rewards.decisions:only",
    "exact.choice": "rl_jax.rewards.exact:choice",
    "exact.graded_number": "rl_jax.rewards.exact:graded_number",
    "exact.items": "rl_jax.rewards.exact:items",
    "exact.label": "rl_jax.rewards.exact:label",
    "exact.match": "rl_jax.rewards.exact:match",
    "exact.number": "rl_jax.rewards.exact:number",
    "exact.within": "rl_jax.rewards.exact:within",
    "form.garbled": "rl_jax.rewards.form:garbled",
    "form.language": "rl_jax.rewards.form:language",
    "form.longer": "rl_jax.rewards.form:longer",
    "form.overlong": "rl_jax.rewards.form:overlong",
    "form.pattern": "rl_jax.rewards.form:pattern",
    "form.repetition": "rl_jax.rewards.form:repetition",
    "form.tags": "rl_jax.rewards.form:tags",
    "form.target_length": "rl_jax.rewards.form:target_length",
    "fuzzing.distance": "rl_jax.rewards.fuzzing:distance",
    "groups.dissimilarity": "rl_jax.rewards.groups:dissimilarity",
    "groups.distinct_ngrams": "rl_jax.rewards.groups:distinct_ngrams",
    "groups.majority": "rl_jax.rewards.groups:majority",
    "groups.novelty": "rl_jax.rewards.groups:novelty",
    "groups.relative_length": "rl_jax.rewards.groups:relative_length",
    "groups.roles": "rl_jax.rewards.groups:roles",
    "groups.uniqueness": "rl_jax.rewards.groups:uniqueness",
    "groups.vote_share": "rl_jax.rewards.groups:vote_share",
    "issues.resolved": "rl_jax.rewards.issues:resolved",
    "json.exact": "rl_jax.rewards.json_answers:exact",
    "json.match": "rl_jax.rewards.json_answers:match",
    "math": "rl_jax.rewards.mathematics:score",  # the same
    "math.score": "rl_jax.rewards.mathematics:score",
    "noise.bernoulli": "rl_jax.rewards.noise:bernoulli",
    "noise.inverted": "rl_jax.rewards.noise:inverted",
    "noise.majority_wrong": "rl_jax.rewards.noise:majority_wrong",
    "order.masked_spans": "rl_jax.rewards.order:masked_spans",
    "order.next_segment": "rl_jax.rewards.order:next_segment",
    "order.permutation": "rl_jax.rewards.order:permutation",
    "order.restored": "rl_jax.rewards.order:restored",
    "overlap.bleu": "rl_jax.rewards.overlap:bleu",
    "overlap.bleu_rouge": "rl_jax.rewards.overlap:bleu_rouge",
    "overlap.bmas": "rl_jax.rewards.overlap:bmas",
    "overlap.rouge": "rl_jax.rewards.overlap:rouge",
    "puzzles.countdown": "rl_jax.rewards.puzzles:countdown",
    "puzzles.sudoku": "rl_jax.rewards.puzzles:sudoku",
    "rubrics.score": "rl_jax.rewards.rubrics:score",
    "sql.execution": "rl_jax.rewards.sql:execution",
    "sql.partial": "rl_jax.rewards.sql:partial",
    "sql.score": "rl_jax.rewards.sql:score",
    "tools.coarse": "rl_jax.rewards.tools:coarse",
    "tools.exact": "rl_jax.rewards.tools:exact",
    "tools.fine": "rl_jax.rewards.tools:fine",
    "tools.intermediate": "rl_jax.rewards.tools:intermediate",
    "unit_tests.quality": "rl_jax.rewards.unit_tests:quality",
    "ways.heading": "rl_jax.rewards.ways:heading",
    "ways.near": "rl_jax.rewards.ways:near",
    "ways.oriented": "rl_jax.rewards.ways:oriented",
}

# What a group term may name, each a list with one entry per completion of the group.
GROUP = {
    "completions": "texts",
    "completion_ids": "the tokens of each completion",
    "prompts": "the prompt, once per completion",
    "infos": "the record's `info`, a dict, once per completion",
    "prompt_ids": "what names the prompt, once per completion",
    "lengths": "tokens of each completion",
    "truncated": "whether each completion was cut off",
    "terms": "name -> values of the item terms",
}


class Term(NamedTuple):
    """One term.

    Attributes:
      name: in config.reward.terms and in the metrics.
      path: "module:function".
      fn: the function.
      weight: in the composition.
      keywords: of the function, JSON values.
    """

    name: str
    path: str
    fn: Callable
    weight: float
    keywords: dict[str, Any]

    @property
    def is_group(self) -> bool:
        """Whether it scores all completions of a prompt at once."""
        return "completions" in inspect.signature(self.fn).parameters


def load_terms(spec: Mapping[str, Mapping], resolve: Callable[[str], Callable]) -> list[Term]:
    """The terms of a config.

    Args:
      spec: name -> {"fn": short name or "module:function", "weight": number, **keywords}.
      resolve: "module:function" -> function, with clear errors (rl_jax.core.binding.resolve).

    Raises:
      ValueError: if a term is no such table, its name or function is unknown, its weight is no finite number, or the
        function does not take a keyword, or an item term lacks one that it needs.
    """
    result = []
    for name, fields in spec.items():
        if not isinstance(fields, Mapping) or not fields.get("fn"):
            raise ValueError(f"reward.terms.{name}={fields!r} must be dict(fn=..., weight=1.0, **keywords)")
        if "/" in name or name == "reward":
            raise ValueError(f"reward.terms.{name}: a term's name has no '/' and is not 'reward'")
        if problem := replies.name_problem(name):
            raise ValueError(f"reward.terms.{name}: the name {problem}")
        keywords = {key: value for key, value in fields.items() if key not in ("fn", "weight")}
        weight, fn = fields.get("weight", 1.0), fields["fn"]
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not math.isfinite(weight):
            raise ValueError(f"reward.terms.{name}.weight={weight!r} must be a finite number")
        path = TERMS.get(fn) or TERMS.get(f"{fn}.score") or fn  # "math" is "math.score"
        if ":" not in path:
            raise ValueError(
                f"reward.terms.{name}.fn={fn!r} is unknown; the short names are {', '.join(sorted(TERMS)) or 'none'}. "
                'To use your own, write "module:function"'
            )
        term = Term(name, path, resolve(path), float(weight), keywords)
        _check_signature(term)
        result.append(term)
    return result


def _check_signature(term: Term) -> None:
    parameters = inspect.signature(term.fn).parameters
    anything = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    if unknown := sorted(set(term.keywords) - set(parameters)):
        if not anything:
            takes = ", ".join(set(parameters) - {"prompt", "completion", "info", *GROUP}) or "no keywords"
            wrong = f"{term.path} takes no {', '.join(unknown)}"
            raise ValueError(f"reward.terms.{term.name}: {wrong}; it takes {takes}")
    if not term.is_group and len([p for p in parameters.values() if p.kind is not p.KEYWORD_ONLY]) < 3:
        raise ValueError(
            f"reward.terms.{term.name}: {term.path}{inspect.signature(term.fn)} must take (prompt, completion, info), "
            "or `completions` to score all completions of a prompt at once"
        )
    if not term.is_group and (missing := _missing(term.keywords, list(parameters.values())[3:])):
        raise ValueError(f"reward.terms.{term.name}: {term.path} needs {', '.join(missing)}: give it in the term")


def _missing(keywords: Mapping[str, Any], parameters: Sequence[inspect.Parameter]) -> list[str]:
    """The parameters without a default that no keyword gives."""
    always = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    return [p.name for p in parameters if p.default is p.empty and p.kind not in always and p.name not in keywords]


def score_item(prompt: str, completion: str, info: dict, *, terms: Sequence[Sequence]) -> dict[str, float]:
    """All item terms of one completion; what the worker processes run.

    Args:
      prompt: text.
      completion: text.
      info: of the record.
      terms: [name, "module:function", keywords] each.

    Returns:
      {"reward": 0.0, NAME: value, NAME/PART: value}; the program composes the reward.

    Raises:
      RuntimeError: if a term raises or returns no number; the message names the term.
    """
    values = {"reward": 0.0}
    for name, path, keywords in terms:
        fn = replies.resolve(path)
        try:
            result = fn(prompt, completion, info, **keywords)
        except Exception as error:
            raise RuntimeError(f"reward term {name!r} ({path}): {type(error).__name__}: {error}") from error
        parts = result if isinstance(result, Mapping) else {"reward": result}
        if "reward" not in parts:
            raise RuntimeError(f"reward term {name!r} ({path}) returned no 'reward': {result!r:.200}")
        if len(parts) > replies.MAX_NAMES + 1:
            most = f"{replies.MAX_NAMES} are allowed"
            raise RuntimeError(f"reward term {name!r} ({path}) returned {len(parts) - 1} components, {most}")
        for part, value in parts.items():
            if part == "weighted":  # NAME/weighted is a metric of the program's own
                raise RuntimeError(f"reward term {name!r} ({path}): no component may be named 'weighted'")
            values[name if part == "reward" else f"{name}/{part}"] = _number(name, path, value)
    return values


def _prepare(*, terms: Sequence[Sequence]) -> None:
    """Imports the terms' modules: libraries such as rouge-score take longer than an item may. Prepares the terms."""
    for _, path, keywords in terms:
        replies.hook(replies.resolve(path), "prepare", keywords, None)


def _share_process(*, terms: Sequence[Sequence]) -> bool:
    return all(replies.shares_process(replies.resolve(path), keywords) for _, path, keywords in terms)


score_item.prepare = _prepare
score_item.shares_process = _share_process
score_item.max_names = lambda *, terms: (replies.MAX_NAMES + 1) * len(terms)


def _number(name: str, path: str, value: Any) -> float:
    try:
        number = math.nan if isinstance(value, str | bytes) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise RuntimeError(f"reward term {name!r} ({path}) returned {value!r:.200}, not a finite number")
    return number


class GroupValues(NamedTuple):
    """What a group term says of one group.

    Attributes:
      values: float32 [G]; 0 where it failed, and where it returned None, which says that it does not apply to the row.
      errors: G entries, what went wrong; None where nothing did.
    """

    values: np.ndarray
    errors: list[str | None]


def score_group(term: Term, columns: Mapping[str, Any]) -> GroupValues:
    """A group term's values of one group.

    It fails for all rows if it raises or returns another number of values, and for a row whose number is not finite.

    Args:
      term: of the config.
      columns: name -> one entry per completion, the names of GROUP.

    Raises:
      ValueError: if it asks for a name that neither GROUP nor the records' info has.
    """
    infos, count = columns["infos"], len(columns["completions"])
    of_info = {key: [info.get(key) for info in infos] for key in (infos[0] if infos else {})}
    available = {**of_info, **columns}
    parameters = inspect.signature(term.fn).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        given = {name: value for name, value in available.items() if name not in term.keywords}
    else:
        given = {name: available[name] for name in parameters if name in available and name not in term.keywords}
    if missing := _missing({**term.keywords, **given}, list(parameters.values())):
        raise ValueError(
            f"reward.terms.{term.name}: {term.path} asks for {', '.join(missing)}; there are {', '.join(available)}"
        )
    try:
        result = list(term.fn(**given, **term.keywords))
    except Exception as error:
        reason = f"reward term {term.name!r} ({term.path}): {type(error).__name__}: {error}"
        return GroupValues(np.zeros(count, np.float32), [reason] * count)
    if len(result) != count:
        reason = f"reward term {term.name!r} ({term.path}) returned {len(result)} values for {count} rows"
        return GroupValues(np.zeros(count, np.float32), [reason] * count)
    values, errors = np.zeros(count, np.float32), [None] * count
    for place, value in enumerate(result):
        try:
            values[place] = 0.0 if value is None else _number(term.name, term.path, value)
        except RuntimeError as error:
            errors[place] = str(error)
    return GroupValues(values, errors)
