"""Where the presets start: a task's config, with every choice of the objective set anew.

A preset inherits no choice from configs/common.py or configs/methods, so that a default that changes there changes no
preset; tests/configs/test_presets.py holds each to the letter, defaults of the functions included. What a framework
does not
have stands here. The word after a config's colon names the task, as in configs/methods.
"""

from ml_collections import ConfigDict

from configs.methods import _start


def frozen(
    key: str,
    arg: str | None,
    *,
    advantage: dict,
    surrogate: dict,
    aggregate: dict,
    kl: dict,
    kl_coef: float,
    updates: int,
    behavior_weight: dict | None = None,
    entropy_aggregate: dict | None = None,
    overlong_share: float = 0.0,
    max_batches: int = 1,
    temperature: float = 1.0,
) -> ConfigDict:
    """A task's config with the objective of a framework.

    key: the preset's, for the run's name. arg: a task and `smoke`, or None.
    advantage, surrogate, aggregate, kl, behavior_weight: functions with their keywords, as in config.algorithm.
    kl_coef: of the KL in the loss. updates: optimizer steps a batch of rollouts, one pass over it.
    overlong_share: of the generation limit, its last part, where DAPO's soft punishment sets in; 0 is none.
    entropy_aggregate: of the entropy bonus, which none of them has switched on; None: the loss's.
    max_batches: of dynamic sampling. temperature: of the rollouts, and so of the policy that is trained.
    Batch sizes, optimizer, warm start and evaluation are the task's.
    """
    config, words = _start.task(arg)
    config.name = "_".join([key, config.name, *(words & {"smoke"})])
    config.rollout.update(temperature=temperature, top_k=0, top_p=1.0)
    # The schedule counts updates.
    before = config.train.epochs * config.train.minibatches
    config.train.optimizer.warmup_steps = config.train.optimizer.warmup_steps * updates // before
    config.train.optimizer.decay_steps = config.train.optimizer.decay_steps * updates // before
    config.train.update(epochs=1, minibatches=updates, max_grad_norm=1.0)
    config.algorithm.update(mask_truncated=False)
    config.sample.dynamic_sampling = dict(max_batches=max_batches)
    buffer = round(overlong_share * config.rollout.completion_length)
    config.algorithm.shaping = dict(fn="overlong", buffer=buffer, penalty=1.0) if buffer else dict(fn="unchanged")
    config.algorithm.reward_kl, config.algorithm.reward_kl_coef = dict(fn="k1"), 0.0
    config.algorithm.advantage = advantage
    config.algorithm.behavior_weight = behavior_weight or dict(fn="none")
    config.algorithm.token_weight, config.algorithm.token_selection = dict(fn="none"), dict(fn="")
    config.algorithm.entropy_weight = dict(fn="")
    config.algorithm.trackers = {place: dict(fn="") for place in config.algorithm.trackers}
    config.algorithm.surrogate = surrogate
    config.algorithm.kl, config.algorithm.kl_coef, config.algorithm.entropy_coef = kl, kl_coef, 0.0
    config.algorithm.aggregate, config.algorithm.entropy_aggregate = aggregate, entropy_aggregate or dict(fn="")
    return config
