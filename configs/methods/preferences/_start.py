"""Where the preference methods start: DPO as published (arXiv 2305.18290). A file of this folder sets what differs.

`dpo` is for given preferences (experiments.dpo): the word after a config's colon names a data set of
configs/preferences/stories.py, generated ones without a word. `online_dpo` is for the policy's own samples
(experiments.online_dpo): the word names `arithmetic`, `stories` or `stories260k`, as in configs/preferences/online.py.
`hybrid` is for both at once. `smoke` is the smallest size. Sizes of batches, the learning rate and the model are the
task's.
"""

from ml_collections import ConfigDict

from configs import common
from configs.preferences import online as online_preferences
from configs.preferences import stories

RANKED = ("rankings", "solutions")  # the data that have more than two responses of a prompt


def dpo(key: str, arg: str | None, **slots) -> ConfigDict:
    """DPO on given preferences. key: the method's, for the run's name. slots: fields of config.algorithm or
    config.train that differ.

    Raises ValueError for a word that is not known, and for data that have not the responses that the method needs.
    """
    known = RANKED if slots.get("responses", 2) > 2 else stories.SETS
    words = common.parse(arg, (*known, "smoke"))
    data = words & set(known) or {known[0]}
    return _named(key, data, words, stories.get_config(",".join(sorted(words | data))), slots)


def online_dpo(key: str, arg: str | None, online: dict, **slots) -> ConfigDict:
    """DPO on the policy's own pairs, judged at once. online: those of
    config.algorithm and config.sample that choose the pairs. Else as `dpo`."""
    words = common.parse(arg, ("arithmetic", "stories", "stories260k", "smoke"))
    config = online_preferences.get_config(",".join(sorted(words - {"arithmetic"})))
    config.sample.update(group_size=2)  # OAIF's on every task
    config.algorithm.update(pair_selection=dict(fn="first_pair"))
    _set(config, ("sample", "algorithm"), online)
    return _named(key, words - {"smoke"} or {"arithmetic"}, words, config, slots)


def hybrid(key: str, arg: str | None, **slots) -> ConfigDict:
    """DPO on given pairs, and a sample of the policy for each prompt. Else as `dpo`."""
    words = common.parse(arg, (*stories.SETS, "smoke"))
    task = words - {"smoke"} or {stories.SETS[0]}
    config = stories.get_config(",".join(sorted(words | task)))
    pairs = config.data
    config.program = "online_dpo"
    del config.train["data_epochs"], config.train["reference_cache"], config["data"], config["encode"]
    config.train.epochs = 1
    config.sample = online_preferences.sample()
    config.algorithm.update(online_preferences.choices())
    config.sample.update(group_size=1, data="pairs")
    config.algorithm.update(pair_selection=dict(fn="given_pair"))
    config.sample.pairs = pairs
    if "smoke" in words:
        config.sample.update(prompts_per_step=8, prompts_per_batch=8)
    return _named(key, task, words, config, slots)


def constrained(config: ConfigDict) -> ConfigDict:
    """The config with CGPO's mixture of judges (arXiv 2409.20370): rules that each answer passes or fails."""
    judges = dict(
        answers=dict(fn="form.pattern", regex=".+", weight=0.0),
        no_doubled_sign=dict(fn="form.pattern", regex=r"(?!.*([=+-])\1).*", weight=0.0),
    )
    config.reward.terms = dict(right=dict(fn="task"), **judges)
    config.reward.compose = dict(fn="rl_jax.rewards.constraints:constrained", by=tuple(judges))
    return config


def _named(key: str, task: set[str], words: set[str], config: ConfigDict, slots: dict) -> ConfigDict:
    config.name = "_".join([key, *sorted(task), *(words & {"smoke"})])
    _set(config, ("algorithm", "train"), slots)
    return config


def _set(config: ConfigDict, groups: tuple[str, str], fields: dict) -> None:
    """Sets each field in the group that has it. Raises ValueError if none has."""
    for name, value in fields.items():
        group = next((group for group in groups if name in config[group]), None)
        if group is None:
            known = ", ".join(known for group in groups for known in config[group])
            raise ValueError(f"config.{groups[0]} has no field {name!r}; it and config.{groups[1]} have: {known}")
        config[group][name] = value
