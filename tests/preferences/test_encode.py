"""Records as arrays: the layout of data.encode_sft, one prompt for its responses, one EOS, what is cut, KTO's rows."""

import numpy as np
import pytest

from rl_jax import preferences
from rl_jax.data import pipeline
from rl_jax.preferences.encode import response_ids
from rl_jax.tokenizers import CharTokenizer, ChatPrompts, ChatTemplate, Llama2cTokenizer, load_tokenizer
from tests.paths import shared_data
from tests.tiny_tokenizers import FAMILIES

TOKENIZER = CharTokenizer("abcdefgh ?<>eos"[:12] + "os")
SETTINGS = {"prompt_buckets": (4, 8), "completion_length": 5}


def record(prompt, *responses, rewards=None, **more):
    rewards = list(range(len(responses)))[::-1] if rewards is None else rewards
    return {"prompt": prompt, "responses": list(responses), "rewards": rewards, "info": {}, **more}


RECORDS = [
    record("abc", "a", "bb", label_prob=0.75, margin=2.0),
    record("defgabc", "cccc", "ddddddd", "a"),  # the first is just C with its EOS, the second is over it
    record("h", "gg", rewards=[0.0]),
]


def encode(records, **settings):
    return preferences.encode_preferences(TOKENIZER, records, **SETTINGS | settings)


def test_the_layout_is_that_of_sft_and_the_prompt_is_shared():
    arrays, counts = encode(RECORDS)
    assert arrays["tokens"].shape == (3, 3, 13) and arrays["completion_mask"].shape == (3, 3, 5)
    np.testing.assert_array_equal(arrays["present"], [[True, True, False], [True] * 3, [True, False, False]])
    np.testing.assert_array_equal(arrays["rewards"], [[1, 0, 0], [2, 1, 0], [0, 0, 0]])
    np.testing.assert_array_equal(arrays["label_probs"], [0.75, 1, 1])
    np.testing.assert_array_equal(arrays["margins"], [2, 0, 0])
    np.testing.assert_array_equal(arrays["indices"], [0, 1, 2])
    flat = [{"prompt": r["prompt"], "completion": text} for r in RECORDS for text in r["responses"]]
    expected = pipeline.encode_sft(TOKENIZER, flat, prompt_buckets=(8,), completion_length=5)
    for name in ("tokens", "positions", "segment_ids"):
        assert arrays[name].dtype == np.int32
        np.testing.assert_array_equal(arrays[name][arrays["present"]], expected[name])
    np.testing.assert_array_equal(arrays["completion_mask"][arrays["present"]], expected["completion_mask"][:, -5:])
    np.testing.assert_array_equal(arrays["completion_mask"].sum(-1), [[2, 3, 0], [5, 5, 2], [3, 0, 0]])
    assert not arrays["completion_mask"][~arrays["present"]].any()
    np.testing.assert_array_equal(arrays["tokens"][:, :, :8], arrays["tokens"][:, :1, :8].repeat(3, axis=1))
    assert counts == {
        "num_records": 3,
        "num_kept": 3,
        "num_prompts_cut": 0,
        "num_prompts_dropped": 0,
        "num_responses": 6,
        "num_responses_cut": 1,
        "num_identical_dropped": 0,
    }
    # One longer prompt, or more room for responses, changes no row's content.
    alone, _ = encode(RECORDS[:1], responses=3)
    assert alone["tokens"].shape == (1, 3, 9)
    np.testing.assert_array_equal(alone["tokens"][0, :, :], arrays["tokens"][0, :, 4:])


def test_the_eos_is_there_once_and_not_behind_what_is_cut():
    eos = TOKENIZER.eos_id
    ids = TOKENIZER.encode("ab")
    for text in ("ab", "ab<eos>", "ab<eos><eos>", "ab<eos> "):
        assert response_ids(TOKENIZER, text) == [*ids, eos]
    arrays, counts = encode([record("a", "cccc<eos>", "ccccc")])
    tokens = arrays["tokens"][0, :, -5:]
    np.testing.assert_array_equal(tokens == eos, [[0, 0, 0, 0, 1], [0] * 5])
    assert counts["num_responses_cut"] == 1
    empty = [record("a", "c", "<eos>"), record("a", "c", "")]
    with pytest.raises(ValueError, match="record 0: response 1 is empty: it has no token before its EOS"):
        encode(empty)
    arrays, _ = encode(empty, empty="keep")
    np.testing.assert_array_equal(arrays["completion_mask"].sum(-1), [[2, 1], [2, 1]])
    np.testing.assert_array_equal(arrays["tokens"][:, 1, -5], [eos, eos])


def test_an_eos_that_a_tokenizer_writes_itself_is_the_only_one():
    class Closing(CharTokenizer):
        def encode_continuation(self, text, *, eos=False):
            return [*self.encode(text), self.eos_id]

    tokenizer = Closing("abc")
    assert response_ids(tokenizer, "ab") == [*tokenizer.encode("ab"), tokenizer.eos_id]


def test_the_eos_of_a_folder_and_of_the_tiny_stories(tmp_path):
    for family in ("llama3", "qwen2.5", "mistral"):
        tokenizer = load_tokenizer(FAMILIES[family](tmp_path / family))
        end = tokenizer.token_text(tokenizer.eos_id)
        plain = response_ids(tokenizer, "the answer")
        assert plain[-1] == tokenizer.eos_id and tokenizer.eos_id not in plain[:-1]
        assert response_ids(tokenizer, "the answer" + end) == plain
    tokenizer = Llama2cTokenizer(shared_data("models/tok512.bin"))
    plain = response_ids(tokenizer, " Once upon")
    for end in ("<s>", "</s>", "</s>\n"):
        assert (
            response_ids(tokenizer, " Once upon" + end)
            == plain
            == tokenizer.encode_continuation(" Once upon", eos=True)
        )


def test_long_prompts():
    long = record("abcdefgh", "a", "b")  # 9 with its BOS
    with pytest.raises(
        ValueError, match=r"record 1: its prompt has 9 tokens with BOS, over the largest bucket 8: 'abc"
    ):
        encode([RECORDS[0], long])
    arrays, counts = encode([RECORDS[0], long], truncate="left")
    assert counts["num_prompts_cut"] == 1
    ids = [TOKENIZER.bos_id, *TOKENIZER.encode("bcdefgh")]
    np.testing.assert_array_equal(arrays["tokens"][1, :, :8], [ids, ids])
    arrays, counts = encode([long, RECORDS[0]], truncate="drop")
    assert (counts["num_prompts_dropped"], counts["num_kept"], list(arrays["indices"])) == (1, 1, [1])
    with pytest.raises(ValueError, match="no record is left to encode: .*'num_prompts_dropped': 1"):
        encode([long], truncate="drop")


def test_a_prompt_without_bos_keeps_all_of_its_end(tmp_path):
    tokenizer = load_tokenizer(FAMILIES["qwen2.5"](tmp_path / "qwen"))
    assert tokenizer.bos_id is None
    ids = tokenizer.encode("The cat sat on the mat. The dog")
    arrays, _ = preferences.encode_preferences(
        tokenizer,
        [record("The cat sat on the mat. The dog", "a")],
        prompt_buckets=(4,),
        completion_length=3,
        truncate="left",
    )
    np.testing.assert_array_equal(arrays["tokens"][0, 0, :4], ids[-4:])


def test_sides_that_are_the_same_once_cut():
    same = record("a", "ccccca", "cccccb")
    with pytest.raises(ValueError, match="record 1: two of its responses are the same once they are cut to 5 tokens"):
        encode([RECORDS[0], same])
    arrays, counts = encode([same, RECORDS[0]], identical="drop")
    assert (counts["num_identical_dropped"], list(arrays["indices"])) == (1, [1])
    assert counts["num_responses"] == 2 and counts["num_responses_cut"] == 0


@pytest.mark.parametrize(
    ("records", "settings", "message"),
    [
        (RECORDS, {"responses": 2}, "record 1 has 3 responses, more than responses=2"),
        (RECORDS, {"truncate": "right"}, "truncate='right' is none of refuse, left, drop"),
        (RECORDS, {"identical": "keep"}, "identical='keep' is none of refuse, drop"),
        (RECORDS, {"empty": "drop"}, "empty='drop' is none of refuse, keep"),
        (RECORDS, {"completion_length": 0}, "completion_length must be at least 1, got 0"),
        ([], {}, "no record is left to encode"),
        ([record([{"role": "user", "content": "a"}], "b")], {}, "record 0 has a chat as prompt, but the tokenizer"),
    ],
)
def test_what_is_refused(records, settings, message):
    with pytest.raises(ValueError, match=message):
        encode(records, **settings)


def test_labels_and_pairs_as_labels():
    labels = preferences.unpair(RECORDS[:2])
    assert [row["rewards"] for row in labels] == [[1.0], [1.0], [0.0], [0.0], [0.0]]
    arrays, _ = preferences.encode_labels(TOKENIZER, labels, **SETTINGS)
    pairs, _ = encode(RECORDS[:2])
    by_place = pairs["tokens"].swapaxes(0, 1)[pairs["present"].T]  # first all the chosen ones
    np.testing.assert_array_equal(arrays["tokens"][:, 0], by_place)
    np.testing.assert_array_equal(arrays["rewards"][:, 0], [1, 1, 0, 0, 0])
    with pytest.raises(ValueError, match="record 0 has 2 responses, but a label is of one response: use unpair"):
        preferences.encode_labels(TOKENIZER, RECORDS, **SETTINGS)


@pytest.mark.parametrize("neighbour", [-1, 1])
def test_mismatched_rows_are_prompts_with_their_neighbours_responses(neighbour):
    """Against records whose responses were exchanged before they were encoded (TRL: -1; HALOs: +1)."""
    records = [record(p, r, rewards=[1.0]) for p, r in [("a", "bb"), ("cdefg", "c"), ("hh", "dddd"), ("b", "e")]]
    arrays, _ = preferences.encode_labels(TOKENIZER, records, **SETTINGS)
    found = preferences.mismatched(arrays, neighbour=neighbour)
    turned = [r | {"responses": records[(i + neighbour) % 4]["responses"]} for i, r in enumerate(records)]
    expected, _ = preferences.encode_labels(TOKENIZER, turned, **SETTINGS)
    assert set(found) == {"tokens", "positions", "segment_ids", "completion_mask", "present"}
    for name, value in found.items():
        np.testing.assert_array_equal(value, expected[name])
        assert value.dtype == expected[name].dtype
    alone = {name: value[:1] for name, value in arrays.items()}
    with pytest.raises(ValueError, match="1 rows and neighbour=-1 would match a row with itself"):
        preferences.mismatched(alone)


def test_mismatched_rows_are_of_other_prompts():
    """Two rows of one prompt side by side, and absent rows, which stand after the others and repeat them."""
    records = [record(p, r, rewards=[1.0]) for p, r in [("a", "b"), ("a", "c"), ("h", "d"), ("a", "e"), ("h", "f")]]
    arrays, _ = preferences.encode_labels(TOKENIZER, records, **SETTINGS)
    arrays["present"][3:] = False

    def said(found):
        rows = [np.where(found["segment_ids"] > 0, found["tokens"], TOKENIZER.pad_id)[:, 0], found["present"][:, 0]]
        return [TOKENIZER.decode(row) if there else "" for row, there in zip(*rows, strict=True)]

    found = preferences.mismatched(arrays)
    assert said(found) == ["ad", "ad", "hc", "", ""]
    assert not found["completion_mask"][3:].any()
    assert said(preferences.mismatched(arrays, neighbour=1)) == ["ad", "ad", "hb", "", ""]
    arrays["present"][1:] = False  # what is left of an evaluation's last batch: no prompt has another one's response
    assert said(preferences.mismatched(arrays)) == [""] * 5


def test_mismatched_rows_hold_what_an_environment_wrote():
    """Nobody learns to say it, and everybody reads it."""
    responses = [dict(ids=[5, 6, 7, 2], trained=[True, False, True, True]), dict(ids=[8, 9, 2])]
    records = [record(prompt, response, rewards=[1.0]) for prompt, response in zip("ab", responses, strict=True)]
    arrays, _ = preferences.encode_labels(TOKENIZER, records, **SETTINGS)
    found = preferences.mismatched(arrays)
    expected, _ = preferences.encode_labels(
        TOKENIZER, [r | {"responses": [x]} for r, x in zip(records, responses[::-1], strict=True)], **SETTINGS
    )
    for name, value in found.items():
        np.testing.assert_array_equal(value, expected[name])
    assert found["segment_ids"].sum() == found["completion_mask"].sum() + 1 + 2 * 2  # the environment's, and prompts


def test_chats_need_a_template_and_are_encoded_by_it(tmp_path):
    folder = FAMILIES["qwen2.5"](tmp_path / "qwen")
    template = ChatTemplate.load(folder, load_tokenizer(folder))
    chat = [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hi"},
        {"role": "user", "content": "?"},
    ]
    arrays, _ = preferences.encode_preferences(
        ChatPrompts(template), [record(chat, "yes", "no")], prompt_buckets=(128,), completion_length=8
    )
    ids = template.start(chat).ids
    row = arrays["tokens"][0, 0]
    assert list(row[128 - len(ids) : 128]) == ids and arrays["segment_ids"][0, 0, :128].sum() == len(ids)
    kept = row[128:][arrays["completion_mask"][0, 0]]
    whole = template.render([*chat, {"role": "assistant", "content": "yes"}])
    assert template.tokenizer.encode(whole)[: len(ids) + len(kept)] == [*ids, *kept]
    assert list(kept) == [*template.tokenizer.encode_continuation("yes"), template.tokenizer.eos_id]


@pytest.mark.slow
def test_hh_takes_seconds(tmp_path):
    """2303 pairs with tok512.bin: counts of what is cut are those of the encoded texts."""
    prefs = preferences.load(
        "hh",
        path=str(shared_data("prefs/hh_harmless_test.jsonl.gz")),
        test_share=0.0,
        skip_bad_records=True,
        data_dir=str(tmp_path),
    )
    tokenizer = Llama2cTokenizer(shared_data("models/tok512.bin"))
    records = list(prefs.data_source("train"))
    settings = {"prompt_buckets": (256,), "completion_length": 64, "truncate": "left", "identical": "drop"}
    arrays, counts = preferences.encode_preferences(tokenizer, records, **settings)
    lengths = arrays["segment_ids"].sum(-1)
    last = tokenizer.eos_id == np.take_along_axis(
        arrays["tokens"], 255 + arrays["completion_mask"].sum(-1)[..., None], -1
    )
    assert counts["num_kept"] == len(arrays["tokens"]) == 2303 - counts["num_identical_dropped"]
    assert counts["num_responses_cut"] == (~last).sum() > 0
    full = np.array([len(tokenizer.encode(record["prompt"], bos=True)) > 256 for record in records])
    assert counts["num_prompts_cut"] == full.sum() > 0
    np.testing.assert_array_equal(arrays["tokens"][full[arrays["indices"]], :, 0], tokenizer.bos_id)
    np.testing.assert_array_equal(arrays["tokens"][..., :256], arrays["tokens"][:, :1, :256].repeat(2, axis=1))
    assert lengths.max() <= 320
