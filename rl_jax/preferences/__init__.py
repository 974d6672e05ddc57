"""Preferences by name: pairs, rankings, labels and labelled steps, checked, split and encoded. No jax.

    prefs = preferences.load("hh", path=".../hh_harmless_test.jsonl.gz", skip_bad_records=True)
    source = prefs.data_source("train")
    records = [source[i] for i in range(len(source))]
    arrays, counts = preferences.encode_preferences(tokenizer, records, prompt_buckets=(256,), completion_length=128)

A dataset takes the keywords of its function in LOADERS.
"""

import functools
import inspect

from rl_jax.preferences import (
    annotators,
    degraded,
    episodes,
    generated,
    hierarchy,
    instructed,
    jsonl,
    judged,
    milestones,
    mixed,
    principled,
    privileged,
    rated,
    solutions,
    traced,
    trees,
)
from rl_jax.preferences.encode import encode_labels, encode_preferences, mismatched, rows_of, unpair
from rl_jax.preferences.records import KINDS
from rl_jax.preferences.sources import Preferences, PreferenceSource
from rl_jax.preferences.steps import encode_steps

__all__ = [
    "KINDS",
    "NAMES",
    "Preferences",
    "PreferenceSource",
    "encode_labels",
    "encode_preferences",
    "encode_steps",
    "load",
    "mismatched",
    "rows_of",
    "unpair",
]

LOADERS = {
    "generated": generated.load,
    "given": generated.load_given,
    "episodes": episodes.load,
    "milestones": milestones.load,
    "principles": principled.load,
    "annotators": annotators.load,
    "degraded": degraded.load,
    "hierarchy": hierarchy.load,
    "instructed": instructed.load,
    "privileged": privileged.load,
    "traced": traced.load,
    "trees": trees.load,
    "jsonl": jsonl.load,
    "hh": judged.load_hh,
    "pandalm": judged.load_pandalm,
    "llmbar": judged.load_llmbar,
    "persona": judged.load_persona,
    "ultrafeedback": rated.load_ultrafeedback,
    "bbmistake": solutions.load_bbmistake,
    "processbench": solutions.load_processbench,
    "gsm8k_solutions": solutions.load_gsm8k_solutions,
    "openr": solutions.load_openr,
}
NAMES = (*LOADERS, "mixed")


def load(name: str, **kwargs) -> Preferences:
    """Loads a dataset.

    Args:
      name: one of NAMES.
      **kwargs: keywords of its function in LOADERS, or of mixed.mix for "mixed".

    Returns:
      Preferences.

    Raises:
      ValueError: if the name or a keyword is unknown, or a keyword is missing; the message lists the valid ones.
    """
    if name not in NAMES:
        raise ValueError(f"unknown preferences {name!r}; the names are {', '.join(NAMES)}")
    loader = functools.partial(mixed.mix, load) if name == "mixed" else LOADERS[name]  # its parts are loaded in turn
    parameters = inspect.signature(loader).parameters
    unknown = sorted(set(kwargs) - set(parameters))
    if unknown:
        raise ValueError(f"preferences {name!r} take no {', '.join(unknown)}; they take {', '.join(parameters)}")
    missing = [key for key, value in parameters.items() if value.default is value.empty and key not in kwargs]
    if missing:
        raise ValueError(f"preferences {name!r} need {', '.join(missing)}; they take {', '.join(parameters)}")
    return loader(**kwargs)
