"""What records hold beside their texts (other rewards, offsets, weights) reaches the loss, of the right response."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from configs.methods.preferences import modpo, pro
from configs.preferences import given
from experiments.parts import preference_data, preference_steps, reward_readers
from rl_jax import preferences
from rl_jax.core.binding import supply
from rl_jax.rewards import exact
from rl_jax.tokenizers import CharTokenizer


def config(**fields):
    found = given.get_config("smoke")
    found.rollout.update(completion_length=5, prompt_buckets=(6,))
    found.algorithm.update(fields)
    return found


def encoded(records, needed=("other_rewards",), **fields):
    setup = SimpleNamespace(config=config(**fields), task=SimpleNamespace(tokenizer=CharTokenizer("abcxyz")))
    return preference_data.Encoder(setup, set(needed))(records)[0]


def record(prompt="a", responses=("x", "y"), **info):
    rewards = [float(k) for k in reversed(range(len(responses)))]
    return dict(prompt=prompt, responses=list(responses), rewards=rewards, info=info)


RANKING = record(responses=("x", "y", "z"), other_rewards=[3, 2, 1], offsets=[0.5, 0.25, 0.125], source="abc")


def records_of(count: int, kind: str, *records):
    source = SimpleNamespace(kind=kind, name="given", data_source=lambda split: list(records))
    return preference_data.records_of(source, "train", count)


def test_the_ends_of_a_ranking_keep_their_own_numbers():
    """K numbers for two responses were a shape error at best."""
    (ends,) = records_of(2, "rankings", RANKING)
    assert ends["responses"] == ["x", "z"] and ends["rewards"] == [2.0, 0.0]
    assert ends["info"] == {"other_rewards": [3, 1], "offsets": [0.5, 0.125], "source": "abc"}
    arrays = encoded([ends], ("other_rewards", "offsets"))
    np.testing.assert_array_equal(arrays["other_rewards"], [[3, 1]])
    np.testing.assert_array_equal(arrays["offsets"], [[0.5, 0.125]])


def test_each_side_of_a_pair_keeps_its_own_numbers():
    found = records_of(1, "pairs", record(other_rewards=[3, 1]), record("b", other_rewards=[5, 4]))
    assert [one["responses"][0] for one in found] == ["x", "x", "y", "y"]
    assert [one["info"]["other_rewards"] for one in found] == [[3], [5], [1], [4]]
    arrays = encoded(found, responses=1)
    np.testing.assert_array_equal(arrays["other_rewards"], [[3], [5], [1], [4]])


@pytest.mark.parametrize("missing", [0, 2], ids=["the first", "the last"])
def test_a_number_that_some_records_lack_is_refused(missing):
    """As the first one it made every other record's own rewards brevity's; as a later one it was a bare KeyError."""
    records = [record(letter, other_rewards=[1, 0]) for letter in "abc"]
    del records[missing]["info"]["other_rewards"]
    having = 1 if missing == 0 else 0
    with pytest.raises(ValueError, match=f"record {missing} lacks 'other_rewards', which record {having} has"):
        encoded(records, brevity=0.5)


def test_a_misspelt_number_is_refused():
    """It went unread, and brevity took its place."""
    records = [record(letter, other_reward=[1, 0]) for letter in "ab"]
    with pytest.raises(ValueError, match="record 0 has a field 'other_reward': did you mean 'other_rewards'"):
        encoded(records, brevity=0.5)
    np.testing.assert_allclose(encoded([record()], brevity=0.5)["other_rewards"], [[-1.0, -1.0]])


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ([1, 2, 3], r"other_rewards=\[1, 2, 3\] must have one entry for each of 2 responses"),
        (1.0, "other_rewards=1.0 must have one entry for each of 2 responses"),
        (["much", 0], r"other_rewards=\['much', 0\] is no array of numbers"),
        ([[1], [2]], r"other_rewards has the shape \(2, 1\), not \(2,\) as before it"),
    ],
    ids=str,
)
def test_numbers_of_another_shape_are_refused(value, said):
    with pytest.raises(ValueError, match=f"record 1: {said}"):
        encoded([record(other_rewards=[1, 0]), record("b", other_rewards=value)])


def test_absent_responses_have_the_number_zero():
    arrays = encoded([RANKING, record("b", other_rewards=[5, 4])], responses=3)
    np.testing.assert_array_equal(arrays["other_rewards"], [[3, 2, 1], [5, 4, 0]])


def test_a_reward_model_reads_records_in_the_same_way():
    """A missing grade, null, is nan and off the mask."""
    records = [record(attribute_targets=[[1, None], [0, 1]]), record("b", attribute_targets=[[1, 1], [0, 0]])]
    setup = SimpleNamespace(config=config(), task=SimpleNamespace(tokenizer=CharTokenizer("abcxyz")))
    arrays, _ = reward_readers.encode_responses(setup, records, {"attribute_targets", "attribute_mask"})
    np.testing.assert_array_equal(arrays["attribute_mask"][0], [[True, False], [True, True]])
    records[1]["info"]["attribute_target"] = records[1]["info"].pop("attribute_targets")
    with pytest.raises(ValueError, match="record 1 has a field 'attribute_target': did you mean 'attribute_targets'"):
        reward_readers.encode_responses(setup, records, {"attribute_targets"})


# --- MODPO's weight ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weight", [0.8, 0.25])
def test_modpo_has_one_weight(weight):
    """The margin is (beta h - (R_w - R_l)) / w with R = -.05 (1 - w) length, whichever w is set, and in one place."""
    found = modpo.get_config()
    if weight != 0.8:
        found.algorithm.scale.weight = weight
    objective = preference_steps.make_objective(found)
    np.testing.assert_allclose(objective.scale(found.algorithm.beta), found.algorithm.beta / weight, rtol=1e-6)
    present, rest = np.ones((1, 2), bool), np.float32([[3.0, 1.0]])
    np.testing.assert_allclose(supply(objective.offset, {"other_rewards": rest})(present), -rest / weight, rtol=1e-6)
    np.testing.assert_allclose(found.algorithm.brevity, 0.05 * (1 - weight), rtol=1e-6)


def test_a_sweep_of_modpo_moves_all_of_it():
    for overrides in modpo.sweep_weight("0.2/0.5"):
        found = modpo.get_config()
        found.update_from_flattened_dict(overrides)
        assert found.algorithm.offset.weight == overrides["algorithm.scale.weight"]
    assert [x["algorithm.scale.weight"] for x in modpo.sweep_weight()] == [0.2, 0.5, 0.8]


def test_two_weights_of_modpo_are_refused():
    found = modpo.get_config().copy_and_resolve_references()  # as it is in a program: plain numbers
    found.algorithm.offset.weight = 0.5
    with pytest.raises(ValueError, match="scale.weight=0.8 and algorithm.offset.weight=0.5 must be equal"):
        preference_steps.make_objective(found)


@pytest.mark.parametrize(("count", "expected"), [(4, 0.45), (8, 2.45), (2, 0.05)])
def test_the_weight_of_pros_best_response_follows_the_length_of_its_lists(count, expected):
    found = pro.get_config()
    found.algorithm.responses = count
    np.testing.assert_allclose(preference_steps.make_objective(found).regularizer_coef, expected, rtol=1e-6)


def test_unpaired_rankings_keep_their_own_numbers():
    found = preferences.unpair([RANKING])
    assert [one["info"]["other_rewards"] for one in found] == [[3], [2], [1]]
    assert [one["rewards"] for one in found] == [[1.0], [0.0], [0.0]]


def test_verifiers_compare_with_the_chosen_text():
    """Unless the file has answers of its own, or there is none: one undesirable response, or steps."""

    def infos(*records):
        return [json.loads(preference_data.Prompts(records)[index]["info"]) for index in range(len(records))]

    chosen, own = infos(record(source="abc"), record(answer=4))
    assert chosen == {"source": "abc", "answer": "x"} and own == {"answer": 4}
    assert exact.match("a", "x ", chosen)["reward"] == 1.0 and exact.match("a", "y", chosen)["reward"] == 0.0
    good, bad = record(responses=("x",)) | {"rewards": [1.0]}, record(responses=("x",))
    assert infos(good, bad, dict(prompt="a", steps=["x"], labels=[1])) == [{"answer": "x"}, {}, {}]
