"""Tokenizers of model folders against transformers and sentencepiece, on folders that the test trains and writes."""

import gzip
import io
import json
import sys

import pytest
import transformers
from tokenizers import processors

from rl_jax.data import readers
from rl_jax.tokenizers import CharTokenizer, check_vocabulary, load_tokenizer
from tests import tiny_tokenizers
from tests.paths import shared_data

TEXTS = [
    "The cat sat on the mat.",
    " two  spaces and a tab\there\n\n",
    "é Ω 漢字 🙂 naïve",
    "special <s> in <|im_end|> the<end_of_turn> middle</s>",
    "12345 it's [INST]",
    "",
]


def unigram(folder):
    config = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    return tiny_tokenizers.write(folder, tiny_tokenizers.unigram(["<s>", "</s>", "<pad>"]), config)


def wordpiece(folder):
    config = {"eos_token": "[SEP]", "pad_token": "[PAD]", "unk_token": "[UNK]"}
    return tiny_tokenizers.write(folder, tiny_tokenizers.wordpiece(["[SEP]", "[PAD]"]), config)


KINDS = tiny_tokenizers.FAMILIES | {"unigram": unigram, "wordpiece": wordpiece}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("tokenizers")
    return {kind: make(root / kind) for kind, make in KINDS.items()}


@pytest.fixture(scope="module")
def sentencepiece_model():
    import sentencepiece

    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(tiny_tokenizers.CORPUS), model_writer=written, vocab_size=400, model_type="bpe",
        byte_fallback=True, hard_vocab_limit=False, minloglevel=2, normalization_rule_name="identity",
        remove_extra_whitespaces=False,
    )  # fmt: skip
    return written.getvalue()


def sentencepiece_folder(folder, model, **config):
    (folder / "tokenizer.model").write_bytes(model)
    flags = dict.fromkeys(("special", "lstrip", "rstrip", "normalized", "single_word"), False) | {"special": True}
    fields = {
        "tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>",
        "added_tokens_decoder": {"400": {"content": "<|im_end|>", **flags}},
    }  # fmt: skip
    (folder / "tokenizer_config.json").write_text(json.dumps(fields | config))
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_ids_are_those_of_transformers(folders, kind):
    ours, theirs = load_tokenizer(folders[kind]), transformers.AutoTokenizer.from_pretrained(folders[kind])
    assert ours.vocab_size == len(theirs)
    assert (ours.bos_id, ours.eos_id) == (theirs.bos_token_id, theirs.eos_token_id)
    assert ours.pad_id == (theirs.eos_token_id if theirs.pad_token_id is None else theirs.pad_token_id)
    for text in TEXTS:
        expected = theirs.encode(text, add_special_tokens=False)
        assert ours.encode(text) == expected
        bos = [] if theirs.bos_token_id is None else [theirs.bos_token_id]
        assert ours.encode(text, bos=True, eos=True) == [*theirs.encode(text), theirs.eos_token_id]
        assert ours.decode(bos + expected) == theirs.decode(bos + expected, skip_special_tokens=True)


@pytest.mark.parametrize("processor", ["none", "template", "roberta", "ends only"])
def test_a_bos_that_is_named_is_added_only_if_the_model_s_tokenizer_adds_it(tmp_path, processor):
    """SmolLM2 and Pythia name a BOS and were trained without. Beside a tokenizer.json, add_bos_token says nothing."""
    tok = tiny_tokenizers.byte_level(["<s>", "</s>"])
    ends = [("</s>", tok.token_to_id("</s>"))]
    if processor == "roberta":
        tok.post_processor = processors.RobertaProcessing(ends[0], ("<s>", tok.token_to_id("<s>")))
    elif processor == "ends only":
        tok.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=ends)
    config = {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": processor == "none"}
    folder = tiny_tokenizers.write(tmp_path / "model", tok, config, adds_bos=processor == "template")
    ours, theirs = load_tokenizer(folder), transformers.AutoTokenizer.from_pretrained(folder)
    first = theirs.encode("The cat")[:1] == [theirs.bos_token_id]
    assert first == (processor in ("template", "roberta"))
    assert ours.encode("The cat", bos=True) == [ours.bos_id] * first + ours.encode("The cat")
    assert ours.bos_id == theirs.bos_token_id and ours.special_tokens["bos_token"] == "<s>"
    broken = json.loads((folder / "tokenizer.json").read_text()) | {"post_processor": {"type": "Sequence"}}
    (folder / "tokenizer.json").write_text(json.dumps(broken))
    with pytest.raises(readers.DataError, match="tokenizer.json: has no post_processor as the tokenizers package"):
        load_tokenizer(folder)


@pytest.mark.parametrize("kind", tiny_tokenizers.FAMILIES)
def test_a_completion_continues_its_prompt(folders, kind):
    tok = load_tokenizer(folders[kind])
    for prompt, rest in [("The cat", " sat on the mat."), ("It is", "n't"), ("A\n", "B é"), ("", " 漢🙂")]:
        ids, new = tok.encode(prompt, bos=True), tok.encode_continuation(rest, eos=True)
        assert new[-1] == tok.eos_id
        assert tok.decode([tok.pad_id, *ids]) + tok.decode(new) == prompt + rest
        assert tok.encode_continuation(rest) == new[:-1]
        assert tok.decode(ids + new, keep_special=True).endswith(tok.special_tokens["eos_token"])


def test_a_space_in_front_is_for_whole_texts_only(folders):
    tok = load_tokenizer(folders["mistral"])
    assert tok.token_text(tok.encode("The")[0]).startswith(" ")
    assert not tok.token_text(tok.encode_continuation("The")[0]).startswith(" ")
    assert tok.decode(tok.encode("The cat")) == " The cat"  # it follows something: the space belongs to the text
    assert tok.decode([tok.bos_id, *tok.encode("The cat")]) == "The cat"
    llama = load_tokenizer(folders["llama3"])
    assert llama.encode("The cat") == llama.encode_continuation("The cat")


@pytest.mark.parametrize("kind", tiny_tokenizers.FAMILIES)
def test_half_a_surrogate_pair_is_a_question_mark(folders, kind):
    """The package takes no such text, and JSON that a model writes can spell one."""
    same_ids(load_tokenizer(folders[kind]), "cat \ud83d dog \udc00", "cat ? dog ?")


def same_ids(tok, text, other):
    assert tok.encode(text) == tok.encode(other) and tok.encode_continuation(text) == tok.encode_continuation(other)
    assert tok.encode_with_offsets(text) == tok.encode_with_offsets(other)


@pytest.mark.parametrize("kind", tiny_tokenizers.FAMILIES)
def test_offsets_cover_the_text(folders, kind):
    tok, text = load_tokenizer(folders[kind]), "The  cat é\n\nsat. "
    ids, offsets = tok.encode_with_offsets(text)
    assert ids == tok.encode(text) and offsets[-1][1] == len(text)
    assert {place for begin, end in offsets for place in range(begin, end)} == set(range(len(text)))


def test_every_id_that_ends_a_text(folders):
    eos = {kind: load_tokenizer(folder).eos_ids for kind, folder in folders.items()}
    assert eos["llama3"] == (4, 1, 5)  # its own first, then generation_config's
    assert eos["qwen2.5"] == (2, 0) and len(eos["gemma"]) == 2 and len(eos["mistral"]) == 1
    chosen = load_tokenizer(folders["llama3"], eos_tokens=["<|eom_id|>"])
    assert (chosen.eos_ids, chosen.eos_id) == ((5,), 5)


def test_ids_of_padded_embeddings_are_shown_and_negative_ones_refused(folders):
    tok = load_tokenizer(folders["qwen2.5"])
    ids = tok.encode("The cat")
    assert tok.decode([*ids, 9999, *ids]) == "The cat\ufffdThe cat" and tok.token_text(9999) == "<id 9999>"
    with pytest.raises(ValueError, match="-1 at place 1"):
        tok.decode([0, -1])


def test_tokens_of_the_config_are_added(tmp_path):
    folder = tiny_tokenizers.chatml(tmp_path)
    size = load_tokenizer(folder).vocab_size
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config["added_tokens_decoder"] = {str(size): {"content": "<tool_call>", "special": False}}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    tok = load_tokenizer(folder)
    assert tok.vocab_size == size + 1 and tok.encode("a<tool_call>")[-1] == size and size in tok.added_ids
    assert tok.decode(tok.encode("a<tool_call>")) == "a<tool_call>"  # not special: it stays
    config["added_tokens_decoder"] = {str(size + 3): {"content": "<tool_call>"}}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(readers.DataError, match=f"'<tool_call>' should have id {size + 3} and would get {size}"):
        load_tokenizer(folder)
    config["added_tokens_decoder"] = {"7": {"content": "<|im_start|>"}}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(readers.DataError, match=r"'<\|im_start\|>' has id 1 there and 7"):
        load_tokenizer(folder)


def test_special_tokens_that_only_the_config_names_are_one_id(tmp_path):
    folder = tiny_tokenizers.mistral(tmp_path)
    description = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps(description | {"added_tokens": []}))
    ours, theirs = load_tokenizer(folder), transformers.AutoTokenizer.from_pretrained(folder)
    assert ours.encode("a</s>The") == theirs.encode("a</s>The", add_special_tokens=False)
    assert ours.eos_id in ours.encode("a</s>The") and ours.decode(ours.encode("</s>a")) == " a"


@pytest.mark.slow
def test_gpt2_from_vocab_and_merges(tmp_path):
    (tmp_path / "vocab.json").write_bytes(gzip.decompress(shared_data("tokenizers/gpt2_encoder.json.gz").read_bytes()))
    (tmp_path / "merges.txt").write_bytes(gzip.decompress(shared_data("tokenizers/gpt2_vocab.bpe.gz").read_bytes()))
    (tmp_path / "config.json").write_text('{"model_type": "gpt2", "eos_token_id": 50256, "bos_token_id": 50256}')
    tok = load_tokenizer(tmp_path)
    assert (tok.vocab_size, tok.eos_ids, tok.pad_id, tok.bos_id) == (50257, (50256,), 50256, None)
    assert tok.encode("Hello world<|endoftext|>") == [15496, 995, 50256]  # published ids
    theirs = transformers.GPT2Tokenizer.from_pretrained(tmp_path)
    for text in TEXTS:
        assert tok.encode(text) == theirs.encode(text) and tok.decode(tok.encode(text)) == text
    config = {"tokenizer_class": "GPT2Tokenizer", "bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"}
    for stated in (None, False, True):  # OPT's says that it is added
        more = {} if stated is None else {"add_bos_token": stated}
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config | more))
        assert load_tokenizer(tmp_path).encode("Hello", bos=True) == [50256] * bool(stated) + [15496]
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "Qwen2Tokenizer"}')
    with pytest.raises(readers.DataError, match="Qwen2Tokenizer do not define how"):
        load_tokenizer(tmp_path)
    (tmp_path / "merges.txt").unlink()
    with pytest.raises(readers.DataError, match="merges.txt is missing"):
        load_tokenizer(tmp_path)


def test_a_published_tokenizer_json(tmp_path):
    packed = shared_data("tokenizers/gpt_neox_20B_tokenizer.json.gz").read_bytes()
    (tmp_path / "tokenizer.json").write_bytes(gzip.decompress(packed))
    tok = load_tokenizer(tmp_path, eos_tokens=["<|endoftext|>"])
    assert tok.vocab_size == 50277 and tok.encode("Hello world") == [12092, 1533]
    with pytest.raises(readers.DataError, match="no file names the EOS token"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("legacy", [True, False])
def test_sentencepiece_is_that_of_transformers(tmp_path, sentencepiece_model, legacy):
    folder = sentencepiece_folder(tmp_path, sentencepiece_model, legacy=legacy)
    ours, theirs = load_tokenizer(folder), transformers.AutoTokenizer.from_pretrained(folder)
    assert ours.vocab_size == len(theirs) == 401
    assert (ours.bos_id, ours.eos_ids, ours.pad_id) == (1, (2,), 2)
    for text in ["The cat sat.", "é 漢字 🙂", "user<|im_end|>The cat</s>", "a<s>The", ""]:
        assert ours.encode(text) == theirs.encode(text, add_special_tokens=False)
        assert ours.decode([1, *ours.encode(text)], keep_special=True) == "<s>" + theirs.decode(ours.encode(text))
    assert ours.encode("The cat", bos=True) == [1, *ours.encode("The cat")]  # the default of Llama's own tokenizer
    for stated in (True, False):
        folder = sentencepiece_folder(tmp_path, sentencepiece_model, legacy=legacy, add_bos_token=stated)
        expected = transformers.AutoTokenizer.from_pretrained(folder).encode("The cat")
        assert load_tokenizer(folder).encode("The cat", bos=True) == expected == [1] * stated + ours.encode("The cat")
    behind = ours.encode("</s>The cat")[1:]
    assert (behind == ours.encode("The cat")) == legacy and (behind == ours.encode_continuation("The cat")) != legacy


def test_an_added_token_that_is_not_special_stays_in_the_text(tmp_path, sentencepiece_model):
    """As <tool_call>, which a reward looks for."""
    flags = dict(lstrip=False, rstrip=False, normalized=False, single_word=False)
    added = {"400": dict(content="<|im_end|>", special=True), "401": dict(content="<tool_call>", special=False)}
    added |= {"402": dict(content="<pad>", special=False)}  # special by its name
    added = {number: token | flags for number, token in added.items()}
    fields = dict(added_tokens_decoder=added, pad_token="<pad>", legacy=False)
    folder = sentencepiece_folder(tmp_path, sentencepiece_model, **fields)
    ours, theirs = load_tokenizer(folder), transformers.AutoTokenizer.from_pretrained(folder)
    ids = ours.encode("cat<tool_call>{1}<|im_end|><pad>", bos=True)
    assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True) == "cat<tool_call>{1}"
    assert ours.decode(ids, keep_special=True) == "<s>" + theirs.decode(ids[1:])


def test_sentencepiece_is_that_of_its_own_package(tmp_path, sentencepiece_model):
    import sentencepiece

    tok = load_tokenizer(sentencepiece_folder(tmp_path, sentencepiece_model))
    raw = sentencepiece.SentencePieceProcessor(model_proto=sentencepiece_model)
    for text in ["The cat", "  two  spaces", "\n\ttab é"]:
        assert tok.encode(text) == raw.encode(text)
        assert tok.decode([1, *tok.encode(text), 2]) == raw.decode(raw.encode(text)) == text
    same_ids(tok, "cat \ud83d dog", "cat ? dog")
    prompt, rest = tok.encode("The cat", bos=True), tok.encode_continuation(" sat on", eos=True)
    assert prompt + rest == [1, *raw.encode("The cat sat on"), 2]
    assert tok.decode(prompt) + tok.decode(rest) == "The cat sat on"
    ids, offsets = tok.encode_with_offsets("é <|im_end|>cat")
    assert ids[-2:] == tok.encode("<|im_end|>cat")[-2:] and (2, 12) in offsets and offsets[-1][1] == 15
    assert tok.decode([*rest[:2], 999]).endswith("\ufffd") and tok.token_text(400) == "<|im_end|>"
    assert tok.token_text(3 + 0xE6) == "<0xE6>" and tok.token_text(401) == "<id 401>"


def test_sentencepiece_errors(tmp_path, sentencepiece_model, monkeypatch):
    folder = sentencepiece_folder(tmp_path, sentencepiece_model)
    for damaged in (sentencepiece_model[:500], b""):
        (folder / "tokenizer.model").write_bytes(damaged)
        with pytest.raises(readers.DataError, match=r"tokenizer\.model"):
            load_tokenizer(folder)
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with pytest.raises(readers.DataError, match="pip install"):
        load_tokenizer(folder)


def damage(folder, name, content):
    (folder / name).write_text(content)
    return folder


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tokenizer.json", '{"version": "1.0", "mod', r"tokenizer\.json: not valid JSON"),
        ("tokenizer.json", "[1]", r"tokenizer\.json: expected a JSON object, found list"),
        ("tokenizer.json", "{}", r"tokenizer\.json: has no field model\.vocab"),
        ("tokenizer.json", '{"model": {"type": "X", "vocab": {"<s>": 0, "</s>": 1}}}', "cannot read it"),
        ("tokenizer_config.json", '{"eos_token": "<nope>"}', r"tokenizer_config\.json: eos_token is '<nope>'"),
        ("special_tokens_map.json", '{"pad_token": {"content": "[X]"}}', r"special_tokens_map\.json: pad_token is"),
        ("generation_config.json", "nonsense", r"generation_config\.json: not valid JSON"),
    ],
)
def test_damaged_folders(tmp_path, name, content, message):
    with pytest.raises(readers.DataError, match=message):
        load_tokenizer(damage(tiny_tokenizers.mistral(tmp_path), name, content))


def test_missing_folders_and_files(tmp_path):
    with pytest.raises(readers.DataError, match="no such folder"):
        load_tokenizer(tmp_path / "nowhere")
    with pytest.raises(readers.DataError, match=r"tokenizer\.json and tokenizer\.model are not there, neither"):
        load_tokenizer(tmp_path)


def test_a_vocabulary_larger_than_the_embedding_is_refused():
    tok = CharTokenizer("0123")
    check_vocabulary(tok, 7, "folder")
    check_vocabulary(tok, 64, "folder")
    with pytest.raises(readers.DataError, match=r"^folder: the embedding has 6 rows.* ids up to 6"):
        check_vocabulary(tok, 6, "folder")
