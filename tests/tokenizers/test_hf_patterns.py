"""Regular expressions of a tokenizer.json: those of published tokenizers pass, those that backtrack are refused."""

import json
import math

import pytest

from rl_jax.data.readers import DataError
from rl_jax.tokenizers import hf_patterns, load_tokenizer
from tests.tiny_tokenizers import chatml

GPT2 = r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
DEEPSEEK = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
KIMI = (
    r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}|\s+(?!\S)|\s+"
)
BLOOM = r" ?[^(\s|[.,!?…。，、।۔،])]+"
CLIP = r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
PUBLISHED = [GPT2, LLAMA3, O200K, DEEPSEEK, KIMI, BLOOM, CLIP, r"\s?\p{L}+", r"[一-龥぀-ゟ゠-ヿ]+", r" {2,}", r"\s+$"]
PUBLISHED += [r"(?=(\d{3})+(?!\d))", r"[0-9][0-9][0-9]", r"\p{N}{1,3}(?=(?:\p{N}{3})*(?:\P{N}|$))", r"^\s+|\s+$"]


@pytest.mark.parametrize("pattern", PUBLISHED)
def test_expressions_of_published_tokenizers_pass(pattern):
    assert hf_patterns.degree_of(pattern) <= hf_patterns.MAX_DEGREE
    hf_patterns.check({"pre_tokenizer": {"type": "Split", "pattern": {"Regex": pattern}}}, "file")


@pytest.mark.parametrize(
    ("pattern", "degree"),
    [
        ("abc", 0), ("a*", 0), ("a*b?", 0), ("a*b", 1), ("a*b*", 1 - 1), ("a+a+", 1), ("a*a*b", 2), ("a*a*a*a*b", 4),
        ("a*(?=b)", 1), ("a*(?!b)", 1), ("(?=a*a*b)c", 2), ("a*|a*a*b", 2), ("a*+a*+b", 0), ("(?>a*a*)b", 0 + 0),
        (r"\p{L}*\p{L}*\x{41}", 2), (r"[a\]*]*[b[c]d]*e", 2), ("a{0,1000}a{0,1000}b", 2), ("a{3}b", 0), ("a*?a*?b", 2),
        ("(?i)a*(?# a*a*a*)b", 1), (r"\(a*\)", 1), ("(a*)(b*)c", 2), ("(?<name>a*)b", 1), ("a{,900}b", 1),
        ("(a|a)*b", math.inf), ("(a*)*b", math.inf), ("(?:a+)+$b", math.inf), ("(a|aa){40}b", math.inf),
        ("((a?)*)*b", math.inf), ("(?:(?:x+x+)+y)", math.inf), (r"(?<a>b|c\g<a>)", math.inf), ("(a|b)*", 0),
        ("(a|b){2}c", 0), ("(?:ab)*c", 1), ("(((a*)))b", 1), ("a**b", math.inf), ("(?:a|b*)+c", math.inf),
    ],
)  # fmt: skip
def test_what_can_backtrack(pattern, degree):
    assert hf_patterns.degree_of(pattern) == degree


@pytest.mark.parametrize(
    "pattern", ["(", ")", "[", "[[", "a|", "(?", "(?<", "\\", "a{", "a{}", "{1,2}", "", "(?'", "[^]", "*"]
)
def test_what_is_malformed_is_left_to_the_package(pattern):
    assert hf_patterns.degree_of(pattern) >= 0


def split(pattern):
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


BOMBS = {
    "split": ("pre_tokenizer", split(r"(\p{L}|\p{L})*\p{N}")),
    "in a sequence": (
        "pre_tokenizer",
        {"type": "Sequence", "pretokenizers": [{"type": "ByteLevel"}, split("a*a*a*b")]},
    ),
    "normalizer": ("normalizer", {"type": "Replace", "pattern": {"Regex": "(a+)+b"}, "content": ""}),
    "decoder": ("decoder", {"type": "Replace", "pattern": {"Regex": "(a+)+b"}, "content": ""}),
}


@pytest.mark.parametrize(("field", "step"), BOMBS.values(), ids=BOMBS)
def test_a_folder_with_a_bomb_is_refused_before_any_text(tmp_path, field, step):
    folder = chatml(tmp_path / "model")
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {field: step}))
    with pytest.raises(DataError, match=rf"tokenizer\.json, field '{field}': the expression '.*' backtracks: .*grow"):
        load_tokenizer(folder)


def test_long_and_deep_expressions_are_refused():
    for pattern, said in (("a" * 20_001, "20001 characters, over 20000"), ("(" * 5000, "nested over 100 deep")):
        with pytest.raises(DataError, match=said):
            hf_patterns.check({"normalizer": {"pattern": {"Regex": pattern}}}, "file")


def test_a_literal_text_is_no_expression():
    hf_patterns.check({"normalizer": {"type": "Replace", "pattern": {"String": "(a+)+b"}, "content": ""}}, "file")
    hf_patterns.check({"normalizer": None, "added_tokens": [{"content": "(a+)+b"}]}, "file")
