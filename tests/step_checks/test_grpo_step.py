"""experiments.grpo against its steps recomputed by slow independent code, all terms on; then with each term taken out.

A case is one run of the program with its settings `s`. The slow code gets the recorded rollouts and `s`, and must reach
at the same params, reference and metrics. An ablation changes `s` for the slow code alone: the check must then fail, or
it would not notice the program losing that term.
"""

import importlib.util

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is in requirements-dev.txt", allow_module_level=True)

from experiments import grpo
from tests.step_checks import grpo_step, policy_step, recording

ADAM = dict(rate=2e-2, warmup=3, decay=20, final=0.2, b1=0.8, b2=0.95, eps=1e-2, weight_decay=0.1)
COMMON = dict(
    length=5,
    rows=16,
    group_size=4,
    epochs=2,
    minibatches=2,
    mask_truncated=True,
    soup=0.4,
    reference_rate=0.3,
)

CASES = {
    "lora": COMMON | dict(
        temperature=0.7, top_k=10, micro_batches=1,
        lora=dict(rank=2, alpha=6.0, targets="layers/(q|v|down)"),
        adam=ADAM | dict(max_norm=0.3),
        shaping=dict(fn="overlong", buffer=3, penalty=0.5),
        reward_kl=dict(fn="k1"), reward_kl_coef=0.0,
        trackers=dict(
            reward_kl=dict(fn="adaptive_kl", initial=0.3, target=1.0, horizon=200.0, max_error=50.0),
            loss_kl=dict(fn="adaptive_kl", initial=0.4, target=5.0, horizon=40.0, max_error=0.5),
        ),
        advantage=dict(fn="group_relative"), behavior_weight=dict(fn="truncated", cap=0.95),
        surrogate=dict(fn="clipped_surrogate", clip_low=0.03, clip_high=0.06),
        kl=dict(fn="k3"), kl_coef=0.0, entropy_coef=0.2, aggregate=dict(fn="group_token_mean"),
    ),
    "packed": COMMON | dict(
        temperature=1.4, micro_batches=2, seed=5,
        packing=dict(mode="shared_prefix", row_length=24),
        adam=ADAM | dict(max_norm=1e3),
        shaping=dict(fn="scaled", center=True, bound=1.5),
        reward_kl=dict(fn="k2"), reward_kl_coef=0.2,
        trackers=dict(
            reward_scale=dict(fn="running_moments"),
            baseline=dict(fn="ema_mean", decay=0.6),
            entropy=dict(fn="adaptive_entropy", initial=0.1, target=5.0, step=0.2),
        ),
        advantage=dict(fn="tracked_baseline"), behavior_weight=dict(fn="none"),
        surrogate=dict(fn="clipped_surrogate", clip_low=0.05, clip_high=0.01),
        kl=dict(fn="k2"), kl_coef=0.3, entropy_coef=0.0, aggregate=dict(fn="token_sum"),
    ),
}  # fmt: skip

EVERYWHERE = {
    "temperature": lambda s: dict(scored_at=1.0),
    "mask of truncated rows": lambda s: dict(mask_truncated=False),
    "second epoch": lambda s: dict(num_updates=2),
    "second minibatch": lambda s: dict(num_updates=1),
    "permutation": lambda s: dict(orders="in_order"),
    "a permutation of its own for each epoch": lambda s: dict(orders="first_epoch_again"),
    "old log-probs: the sampler's": lambda s: dict(old="behavior"),
    "old log-probs: the current ones": lambda s: dict(old="current"),
    "low clip": lambda s: dict(surrogate=s["surrogate"] | dict(clip_low=10.0)),
    "high clip": lambda s: dict(surrogate=s["surrogate"] | dict(clip_high=10.0)),
    "shaping": lambda s: dict(shaping=dict(fn="unchanged")),
    "KL in the reward": lambda s: dict(no_reward_kl=True),
    "KL in the loss": lambda s: dict(no_kl=True),
    "arguments of the KL in the loss": lambda s: dict(swapped_kl=True),
    "estimator of the KL in the reward": lambda s: dict(reward_kl=dict(fn="k3")),
    "estimator of the KL in the loss": lambda s: dict(kl=dict(fn="k1")),
    "entropy bonus": lambda s: dict(no_entropy=True),
    "aggregate": lambda s: dict(aggregate=dict(fn="token_mean")),
    "reference": lambda s: dict(ref_is_policy=True),
    "soup of the reference": lambda s: dict(soup=0.0),
    "moves of the reference": lambda s: dict(reference_rate=0.0),
    "learning rate's warm-up": lambda s: dict(adam=s["adam"] | dict(warmup=0)),
    "learning rate's decay": lambda s: dict(adam=s["adam"] | dict(final=1.0)),
    "Adam's moments across steps": lambda s: dict(fresh_moments=True),
    "weight decay": lambda s: dict(adam=s["adam"] | dict(weight_decay=0.0)),
    "b1": lambda s: dict(adam=s["adam"] | dict(b1=0.9)),
    "b2": lambda s: dict(adam=s["adam"] | dict(b2=0.999)),
    "eps": lambda s: dict(adam=s["adam"] | dict(eps=1e-8)),
}
ONLY = {
    "lora": {
        "adapters": lambda s: dict(lora_factor=0.0),
        "scale of the adapters": lambda s: dict(lora_factor=2.0),
        "clip of the norm": lambda s: dict(adam=s["adam"] | dict(max_norm=1e3)),
        "weights against the sampler": lambda s: dict(behavior_weight=dict(fn="none")),
        "cap of these weights": lambda s: dict(behavior_weight=dict(fn="truncated")),
        "division by the group's deviation": lambda s: dict(divide=False),
        "ddof": lambda s: dict(ddof=0),
        "tokens of the loss in the groups' sizes": lambda s: dict(group_tokens_of_all=True),
        "arguments of the KL in the reward": lambda s: dict(swapped_reward_kl=True),
        "tracker of the KL in the reward": lambda s: dict(frozen_trackers=("reward_kl",)),
        "tracker of the KL in the loss": lambda s: dict(frozen_trackers=("loss_kl",)),
        "trackers after their use": lambda s: dict(trackers_too_early=True),
    },
    "packed": {
        "baseline": lambda s: dict(frozen_trackers=("baseline",)),
        "scale of the rewards": lambda s: dict(shaping=s["shaping"] | dict(bound=100.0)),
        "tracker of the entropy": lambda s: dict(frozen_trackers=("entropy",)),
        "trackers after their use": lambda s: dict(trackers_too_early=True),
    },
}
# k2 is the same both ways; without top-k the sampler's log-probs are the old ones; no ratio gets above the high clip.
LESS = {
    "lora": set(),
    "packed": {"arguments of the KL in the loss", "old log-probs: the sampler's", "high clip"},
}
TERMS = {
    case: {name: change for name, change in {**EVERYWHERE, **ONLY[case]}.items() if name not in LESS[case]}
    for case in CASES
}


@pytest.fixture(scope="module")
def runs():
    """The records of the program's runs by case: each runs once."""
    return {}


@pytest.fixture
def case(request, runs, tmp_path):
    """(name, settings, the record of the program's run)."""
    s = CASES[request.param]
    if request.param not in runs:
        runs[request.param] = recording.record(grpo, tmp_path, s)
    return request.param, s, runs[request.param]


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, indirect=True)
def test_the_steps_are_those_of_the_slow_code(case):
    _, s, record = case
    assert policy_step.differences(record, grpo_step.run(record, s)) == {}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, indirect=True)
def test_the_rows_are_those_of_the_slow_code(case):
    """Sampled by the policy before the step, at its temperature; rewarded for their own prompt and completion."""
    _, s, record = case
    policy_step.check_rows(record, s)


@pytest.mark.slow
@pytest.mark.parametrize(("case", "term"), [(case, term) for case in CASES for term in TERMS[case]], indirect=["case"])
def test_every_term_moves_the_result(case, term):
    name, s, record = case
    found = grpo_step.run(record, s | TERMS[name][term](s))
    assert policy_step.differences(record, found, any_step=True)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, indirect=True)
def test_the_orders_of_epochs_are_all_rows_each_in_another_one(case):
    _, s, record = case
    policy_step.check_orders(record, s)
