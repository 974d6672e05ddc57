"""Folders that attack who loads them: texts that explode, JSON without end, pipes and devices in place of files."""

import json
import os

import pytest
import safetensors.numpy

from rl_jax.data import plain_files
from rl_jax.data.readers import DataError
from rl_jax.models.hf import loading, tensor_files
from rl_jax.runs import logging, run_record
from rl_jax.tokenizers import hf_limits, load_tokenizer
from rl_jax.tokenizers.chat import ChatTemplate
from rl_jax.tokenizers.template import ChatTemplateError
from tests.tiny_tokenizers import chatml

DEEP = b'{"a":' * 100_000 + b"1" + b"}" * 100_000


def replace(old, new, **more):
    return {"type": "Replace", "pattern": {"String": old}, "content": new} | more


def sequence(*steps):
    return {"type": "Sequence", "normalizers": list(steps)}


@pytest.fixture
def folder(tmp_path):
    return chatml(tmp_path / "model")


@pytest.mark.parametrize(
    "steps",
    [
        [replace("a", "aa")] * 40,
        [sequence(*[replace("a", "aaaa")] * 5)] * 5,
        [{"type": "Prepend", "prepend": "a" * 100}] * 3,
        [replace("", "xx", pattern={"Regex": "a*"})] * 20,
        [replace("a", "a" * 100_000)],
    ],
    ids=["doubled", "in sequences", "prepended", "by patterns", "at once"],
)
@pytest.mark.parametrize("field", ["normalizer", "decoder"])
def test_steps_that_blow_up_a_text_are_refused(folder, field, steps):
    path = folder / "tokenizer.json"
    description = json.loads(path.read_text()) | {field: sequence(*steps)}
    if field == "decoder":
        description[field] = {"type": "Sequence", "decoders": steps}
    path.write_text(json.dumps(description))
    with pytest.raises(DataError, match=rf"tokenizer\.json, field '{field}': .*(times longer|inserts)"):
        load_tokenizer(folder)


def test_the_steps_of_real_tokenizers_pass():
    llama = sequence({"type": "Prepend", "prepend": "▁"}, replace(" ", "▁"))
    albert = sequence(
        replace("``", '"'), replace("''", '"'), {"type": "NFKD"}, replace("", " ", pattern={"Regex": " {2,}"})
    )
    for steps in (llama, albert, None, {"type": "NFC"}, sequence(*[replace("", " ", pattern={"Regex": r"\s+"})] * 8)):
        hf_limits.check({"normalizer": steps}, "file")


def test_a_panic_of_the_package_is_an_error_of_the_file():
    class PanicException(BaseException):  # as pyo3 calls it
        pass

    with pytest.raises(DataError, match="^tokenizer.json: the tokenizers package gave up encoding 'x'"):
        with hf_limits.panics("tokenizer.json", "encoding 'x'"):
            raise PanicException("retry limit")
    with pytest.raises(KeyboardInterrupt):
        with hf_limits.panics("tokenizer.json", "encoding 'x'"):
            raise KeyboardInterrupt


NAMES = [
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "generation_config.json",
    "added_tokens.json",
]


@pytest.mark.parametrize("name", NAMES)
def test_deep_json_and_pipes_in_a_tokenizer_s_folder_are_named(folder, name):
    (folder / name).write_bytes(DEEP)
    with pytest.raises(DataError, match=f"{name}: lists or objects are nested too deep"):
        load_tokenizer(folder)
    (folder / name).unlink()
    os.mkfifo(folder / name)
    with pytest.raises(DataError, match=f"{name}: is a named pipe, not a regular file"):
        load_tokenizer(folder)


def test_a_json_file_has_a_largest_size(folder, monkeypatch):
    monkeypatch.setattr(plain_files, "MAX_JSON", 100)
    with pytest.raises(DataError, match=r"tokenizer\w*\.json: over 100 bytes"):
        load_tokenizer(folder)


def test_templates_that_are_no_files_or_no_texts_are_named(folder):
    tokenizer = load_tokenizer(folder)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    for source, said in (
        (7, "is a int, not a text"),
        ([7], "something else than name"),
        ([{"name": "x"}], "than name"),
    ):
        (folder / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": source}))
        with pytest.raises(ChatTemplateError, match=f"tokenizer_config.json: .*{said}"):
            ChatTemplate.load(folder, tokenizer)
    os.mkfifo(folder / "chat_template.jinja")
    with pytest.raises(DataError, match="chat_template.jinja: is a named pipe"):
        ChatTemplate.load(folder, tokenizer)
    (folder / "chat_template.jinja").unlink()
    (folder / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(DataError, match="chat_template.jinja: is no UTF-8 text"):
        ChatTemplate.load(folder, tokenizer)


def test_weights_that_are_no_files_are_not_opened(tmp_path):
    path = tmp_path / "model.safetensors"
    os.mkfifo(path)
    with pytest.raises(ValueError, match="model.safetensors: is a named pipe, not a regular file"):
        tensor_files.TensorFiles(tmp_path)
    path.unlink()
    path.symlink_to("/dev/zero")
    with pytest.raises(ValueError, match="model.safetensors: is a device"):
        tensor_files.TensorFiles(tmp_path)


@pytest.mark.parametrize("length", [2**63, 2**32, 40 << 20, 1000])
def test_a_header_longer_than_its_file_or_than_any_is_refused(tmp_path, length):
    path = tmp_path / "model.safetensors"
    path.write_bytes(length.to_bytes(8, "little") + b"{}")
    if length == 40 << 20:
        os.truncate(path, length + 100)  # a hole: it takes no room
    with pytest.raises(ValueError, match=rf"model.safetensors: truncated or not .*a header of {length} bytes"):
        tensor_files.TensorFiles(tmp_path)


@pytest.mark.parametrize("shard", [None, 7, ["a"], {}])
def test_a_weight_map_that_names_no_files_is_refused(tmp_path, shard):
    safetensors.numpy.save_file({}, tmp_path / "a.safetensors")
    (tmp_path / tensor_files.INDEX).write_text(json.dumps({"weight_map": {"x": "a.safetensors", "y": shard}}))
    with pytest.raises(ValueError, match=r"index.json: 'y' should be in a file, not in"):
        tensor_files.TensorFiles(tmp_path)


def test_every_reader_of_json_names_a_file_that_is_nested_too_deep(tmp_path):
    path = tmp_path / "config.json"
    path.write_bytes(DEEP)
    for read in (tensor_files.read_json, plain_files.read_json, run_record.read_json):
        with pytest.raises(ValueError, match="config.json: .*nested too deep"):
            read(path)
    with pytest.raises(ValueError, match="config.json: .*nested too deep"):
        loading.read_config(tmp_path)
    path.write_bytes(DEEP + b"\n")
    with pytest.raises(ValueError, match="config.json:1: damaged line .nested too deep"):
        logging.read_jsonl(path)
