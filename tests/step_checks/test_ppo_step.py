"""experiments.ppo against its steps recomputed by slow independent code, all terms on; then each taken out."""

import importlib.util

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is in requirements-dev.txt", allow_module_level=True)

from experiments import ppo
from tests.step_checks import policy_step, ppo_step, recording
from tests.step_checks.test_grpo_step import ADAM, COMMON, EVERYWHERE

CASES = {
    "separate, lora": COMMON | dict(
        temperature=0.7, top_k=10, micro_batches=1, mask_truncated=False, seed=1,
        lora=dict(rank=2, alpha=6.0, targets="layers/(q|v|down)"),
        adam=ADAM | dict(max_norm=0.3),
        shaping=dict(fn="overlong", buffer=3, penalty=0.5),
        reward_kl=dict(fn="k1"), reward_kl_coef=0.0,
        trackers=dict(
            reward_kl=dict(fn="adaptive_kl", initial=0.3, target=1.0, horizon=200.0, max_error=50.0),
            loss_kl=dict(fn="adaptive_kl", initial=0.4, target=5.0, horizon=40.0, max_error=0.5),
        ),
        behavior_weight=dict(fn="truncated", cap=0.95),
        surrogate=dict(fn="clipped_surrogate", clip_low=0.03, clip_high=0.06),
        kl=dict(fn="k3"), kl_coef=0.0, entropy_coef=0.2, aggregate=dict(fn="seq_mean_token_mean"),
        critic=dict(
            shared=False, discount=0.9, lam=0.8, whiten=False, bootstrap_truncated=True, value_clip=0.05,
            value_coef=0.1, micro_batches=2, adam=ADAM | dict(rate=3e-2, warmup=2, max_norm=0.5),
        ),
    ),
    "shared, packed": COMMON | dict(
        temperature=1.4, micro_batches=2, seed=5,
        packing=dict(mode="packed", row_length=24),
        adam=ADAM | dict(max_norm=1e3),
        shaping=dict(fn="scaled", center=False, bound=1.5),
        reward_kl=dict(fn="k2"), reward_kl_coef=0.2,
        trackers=dict(
            reward_scale=dict(fn="running_moments"),
            entropy=dict(fn="adaptive_entropy", initial=0.1, target=5.0, step=0.2),
        ),
        behavior_weight=dict(fn="none"),
        surrogate=dict(fn="clipped_surrogate", clip_low=0.05, clip_high=0.01),
        kl=dict(fn="k2"), kl_coef=0.3, entropy_coef=0.0, aggregate=dict(fn="seq_mean_token_sum"),
        critic=dict(
            shared=True, discount=0.95, lam=0.7, whiten=True, bootstrap_truncated=False, value_clip=0.04,
            value_coef=0.5, micro_batches=1, adam=ADAM | dict(max_norm=1e3),
        ),
    ),
}  # fmt: skip


def critic(**fields):
    """A change of the critic's settings."""
    return lambda s: dict(critic=s["critic"] | fields)


OF_CRITIC = {
    "lambda": critic(lam=1.0),
    "discount": critic(discount=1.0),
    "value clip": critic(value_clip=10.0),
    "values": lambda s: dict(values_times=0.0),
    "bootstrap": lambda s: critic(bootstrap_truncated=not s["critic"]["bootstrap_truncated"])(s),
    "whitening": lambda s: critic(whiten=not s["critic"]["whiten"])(s),
}
ONLY = {
    "separate, lora": {
        "adapters": lambda s: dict(lora_factor=0.0),
        "scale of the adapters": lambda s: dict(lora_factor=2.0),
        "clip of the norm": lambda s: dict(adam=s["adam"] | dict(max_norm=1e3)),
        "clip of the critic's norm": lambda s: critic(adam=s["critic"]["adam"] | dict(max_norm=1e3))(s),
        "critic's learning rate": lambda s: critic(adam=s["critic"]["adam"] | dict(warmup=3))(s),
        "critic's own trunk": lambda s: dict(policy_predicts=True),
        "weights against the sampler": lambda s: dict(behavior_weight=dict(fn="none")),
        "cap of these weights": lambda s: dict(behavior_weight=dict(fn="truncated")),
        "arguments of the KL in the reward": lambda s: dict(swapped_reward_kl=True),
        "tracker of the KL in the reward": lambda s: dict(frozen_trackers=("reward_kl",)),
        "tracker of the KL in the loss": lambda s: dict(frozen_trackers=("loss_kl",)),
    },
    "shared, packed": {
        "value loss": critic(value_coef=0.0),
        "scale of the rewards": lambda s: dict(shaping=s["shaping"] | dict(bound=100.0)),
        "tracker of the entropy": lambda s: dict(frozen_trackers=("entropy",)),
    },
}
# In the first, rows cut off are bootstrapped and not masked; k2 is the same both ways; without top-k the sampler's
# log-probs are the old ones.
LESS = {
    "separate, lora": {"mask of truncated rows"},
    "shared, packed": {"bootstrap", "arguments of the KL in the loss", "old log-probs: the sampler's"},
}
TERMS = {
    case: {name: change for name, change in {**EVERYWHERE, **OF_CRITIC, **ONLY[case]}.items() if name not in LESS[case]}
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
        runs[request.param] = recording.record(ppo, tmp_path, s)
    return request.param, s, runs[request.param]


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, indirect=True)
def test_the_steps_are_those_of_the_slow_code(case):
    _, s, record = case
    assert policy_step.differences(record, ppo_step.run(record, s)) == {}


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
    found = ppo_step.run(record, s | TERMS[name][term](s))
    assert policy_step.differences(record, found, any_step=True)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, indirect=True)
def test_the_orders_of_epochs_are_all_rows_each_in_another_one(case):
    _, s, record = case
    policy_step.check_orders(record, s)
