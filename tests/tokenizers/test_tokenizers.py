"""Tokenizers: round trips, the published ids, and llama2.c's own quadratic loop as the reference."""
import pathlib
import random
import struct

import pytest

from rl_jax.data import readers
from rl_jax.tokenizers import ByteTokenizer, CharTokenizer, Llama2cTokenizer, PlainPrompts, of_texts, plain_text
from tests.paths import shared_data


@pytest.fixture(scope="module")
def llama():
    return Llama2cTokenizer(shared_data("models/tok512.bin"))


@pytest.fixture(scope="module")
def stories():
    path = shared_data("text/tinystories_2MiB.txt.gz")
    return [story for _, story in readers.read_stories(path, readers.BadRecords())]


def run_c_encode(text: str, path) -> list[int]:
    """run.c's encode, line by line: look up characters, else bytes, then merge the best pair of the whole text."""
    raw, offset, vocab, scores = pathlib.Path(path).read_bytes(), 4, [], []
    while offset < len(raw):
        score, length = struct.unpack_from("<fi", raw, offset)
        vocab.append(raw[offset + 8:offset + 8 + length])
        scores.append(score)
        offset += 8 + length
    lookup = {piece: i for i, piece in enumerate(vocab)}
    tokens = [lookup[b" "]] if text else []
    for character in text:
        encoded = character.encode()
        tokens += [lookup[encoded]] if encoded in lookup else [3 + byte for byte in encoded]
    while True:
        best_score, best_id, best_index = -1e10, -1, -1
        for i in range(len(tokens) - 1):
            found = lookup.get(vocab[tokens[i]] + vocab[tokens[i + 1]], -1)
            if found != -1 and scores[found] > best_score:
                best_score, best_id, best_index = scores[found], found, i
        if best_index == -1:
            return tokens
        tokens[best_index:best_index + 2] = [best_id]


def test_char_round_trip_and_special_ids():
    tok = CharTokenizer("0123456789+-=")
    assert (tok.vocab_size, tok.pad_id, tok.bos_id, tok.eos_ids, tok.eos_id) == (16, 0, 1, (2,), 2)
    ids = tok.encode("37+5=", bos=True, eos=True)
    assert ids == [1, 6, 10, 13, 8, 15, 2]
    assert tok.decode([0, 0, *ids, 6]) == "37+5=3"  # special ids are dropped and stop nothing
    assert tok.encode_continuation("42", eos=True) == [7, 5, 2]
    assert [tok.token_text(i) for i in (0, 1, 2, 3, 15)] == ["<pad>", "<bos>", "<eos>", "0", "="]


def test_bytes_take_every_text():
    tok = ByteTokenizer()
    assert tok.vocab_size == 259 and tok.encode("aé", bos=True, eos=True) == [1, 100, 198, 172, 2]
    rng = random.Random(0)
    for _ in range(50):
        text = "".join(chr(rng.randrange(32, 0xD800)) for _ in range(20))
        assert tok.decode([0, *tok.encode(text, bos=True), *tok.encode_continuation(text, eos=True)]) == 2 * text
    assert tok.decode(tok.encode("\ud800")) == "?" and tok.decode([198]) == "\N{REPLACEMENT CHARACTER}"
    assert [tok.token_text(i) for i in (0, 1, 2, 100, 13)] == ["<pad>", "<bos>", "<eos>", "a", "<0x0A>"]
    with pytest.raises(ValueError, match="id 259 at place 0 is outside the vocabulary of 259"):
        tok.decode([259])


def test_chats_without_a_template_are_plain_text():
    chat = [{"role": "system", "content": "Add."}, {"role": "user", "content": "1+1?"}]
    tok = PlainPrompts(plain := ByteTokenizer())
    assert of_texts(tok) is of_texts(plain) is plain
    assert plain_text(chat) == "System: Add.\n\nUser: 1+1?\n\nAssistant:"
    assert tok.decode(tok.encode(chat, bos=True)) == plain_text(chat) and tok.encode_messages(chat)[0] == tok.bos_id
    assert tok.encode("1+1?", eos=True) == ByteTokenizer().encode("1+1?", eos=True) and tok.vocab_size == 259


def test_char_errors_name_the_place():
    tok = CharTokenizer("01+=")
    with pytest.raises(ValueError, match=r"'x' at place 2"):
        tok.encode("0+x")
    with pytest.raises(ValueError, match=r"id 7 at place 1"):
        tok.decode([3, 7])
    with pytest.raises(ValueError, match="id -1"):
        tok.token_text(-1)
    with pytest.raises(ValueError, match="distinct"):
        CharTokenizer("010")


def test_llama_published_facts(llama):
    assert (llama.vocab_size, llama.pad_id, llama.bos_id, llama.eos_ids, llama.eos_id) == (512, 0, 1, (1, 2), 1)
    ids = llama.encode("Once upon a time", bos=True)
    assert ids == [1, 403, 407, 261, 378]  # what llama2.c prints for the stories260K prompt
    assert [llama.token_text(i) for i in ids] == ["<s>", " Once", " upon", " a", " time"]
    assert llama.decode(ids) == "Once upon a time"
    assert llama.encode("\n")[-1] == 3 + 0x0A  # a byte token
    assert llama.encode("") == [] and llama.encode("", bos=True, eos=True) == [1, 1]
    assert llama.encode("a \ud83d") == llama.encode("a ?")  # half of a surrogate pair


def test_llama_round_trip_of_every_story(llama, stories):
    for story in stories[:300]:
        ids = llama.encode(story, bos=True)
        assert llama.decode(ids) == story
        assert llama.decode(llama.encode(story)) == " " + story  # without BOS the dummy space stays, as in run.c
        assert 0 not in ids and max(ids) < 512


def test_llama_equals_the_loop_of_run_c(llama, stories):
    rng = random.Random(0)
    texts = [story[:120] for story in stories[::200]]
    texts += ["  two  spaces ", "ñ Ω 漢字 🙂", "tab\tand\r\n", "<0x41> <s>", "aaaaaaaaaaaa"]
    texts += ["".join(rng.choice("theo Lnd.\"'\n é") for _ in range(40)) for _ in range(30)]
    for text in texts:
        assert llama.encode(text) == run_c_encode(text, llama.path), text
        assert llama.decode(llama.encode(text, bos=True)) == text


def test_llama_continuation_joins_to_the_whole_story(llama, stories):
    for story in stories[:50]:
        cut = story.index(" ", 20)
        prompt = llama.encode(story[:cut], bos=True)
        rest = llama.encode_continuation(story[cut:], eos=True)
        assert prompt + rest == llama.encode(story, bos=True) + [1]
        assert llama.decode([0, 0, *prompt]) + llama.decode(rest) == story  # left padding changes nothing


def test_llama_bytes_that_are_no_text(llama):
    assert llama.decode([1, 3 + 0xE6]) == "�"
    assert llama.token_text(3 + 0xE6) == "<0xE6>"


@pytest.mark.parametrize("damage, message", [
    (lambda raw: raw[:1000], "cut|claims"), (lambda raw: raw[:4], "byte tokens"),
    (lambda raw: b"not a tokenizer at all", "claims"), (None, "cannot be opened")])
def test_llama_bad_files(tmp_path, damage, message):
    path = tmp_path / "tokenizer.bin"
    if damage:
        path.write_bytes(damage(shared_data("models/tok512.bin").read_bytes()))
    with pytest.raises(readers.DataError, match=message) as caught:
        Llama2cTokenizer(path)
    assert str(path) in str(caught.value)
