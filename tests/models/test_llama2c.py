"""models/llama2c.py: the published stories260K checkpoint, a numpy forward written from llama2.c's run.c, bad files."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax.core.types import TokenBatch
from rl_jax.models.hf import llama2c
from rl_jax.models.transformer.model import make_transformer
from rl_jax.rollout.lm.engine import make_generate
from rl_jax.rollout.lm.sampling import Sampling
from rl_jax.tokenizers import Llama2cTokenizer
from rl_jax.training.scoring import make_score
from tests.paths import shared_data
from tests.tiny import stories_path, stories_texts

DIM, HIDDEN, LAYERS, HEADS, KV_HEADS, VOCAB, MAX_LEN = 16, 24, 2, 4, 2, 20, 32


@functools.cache
def _stories():
    config, params = llama2c.load(stories_path())
    return make_transformer(config), params


def _tokenizer():
    return Llama2cTokenizer(shared_data("models/tok512.bin"))


def test_has_the_published_number_of_parameters():
    _, params = _stories()
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == 260_032
    assert all(leaf.dtype == np.float32 for leaf in jax.tree.leaves(params))


@pytest.mark.slow
def test_nats_per_token_on_tiny_stories():
    """1.33 in ../shared/data/SOURCES.md: BOS and the story, at most 512 tokens, 64 stories, mean over tokens."""
    model, params = _stories()
    tokenizer = _tokenizer()
    score = jax.jit(make_score(model, completion_length=511, chunk=64))
    total, number = 0.0, 0
    rows = [tokenizer.encode(text, bos=True)[:512] for text in stories_texts(64)]
    for start in range(0, 64, 16):
        part = rows[start : start + 16]
        tokens = np.zeros((16, 512), np.int32)
        real = np.zeros((16, 512), bool)
        for i, row in enumerate(part):
            tokens[i, : len(row)], real[i, : len(row)] = row, True
        positions = np.broadcast_to(np.arange(512, dtype=np.int32), (16, 512))
        log_probs = score(params, TokenBatch(tokens, positions, real.astype(np.int32))).log_probs
        total -= float(np.sum(np.asarray(log_probs, np.float64)[real[:, 1:]]))
        number += int(real[:, 1:].sum())
    print(f"stories260K: {total / number:.4f} nats a token over {number} tokens")
    assert number > 10_000
    assert total / number == pytest.approx(1.33, abs=0.02)


@pytest.mark.slow
def test_the_greedy_story_begins_as_published():
    model, params = _stories()
    tokenizer = _tokenizer()
    generate = make_generate(
        model, completion_length=40, sampling=Sampling(top_k=1), eos_ids=tokenizer.eos_ids, pad_id=tokenizer.pad_id
    )
    prompt = jnp.array([[tokenizer.bos_id]], jnp.int32)
    rollout = jax.jit(generate)(params, prompt, jnp.ones((1, 1), bool), jax.random.key(0))
    text = tokenizer.decode(np.asarray(rollout.batch.tokens[0]).tolist())
    assert text.startswith("Once upon a time, there was a little girl named Lily.")


def _tensors(tied):
    """Random tensors in the order of the file, by the names of run.c."""
    rng = np.random.default_rng(0)
    head = DIM // HEADS
    shapes = {
        "token_embedding": (VOCAB, DIM), "rms_att": (LAYERS, DIM), "wq": (LAYERS, DIM, DIM),
        "wk": (LAYERS, KV_HEADS * head, DIM), "wv": (LAYERS, KV_HEADS * head, DIM), "wo": (LAYERS, DIM, DIM),
        "rms_ffn": (LAYERS, DIM), "w1": (LAYERS, HIDDEN, DIM), "w2": (LAYERS, DIM, HIDDEN),
        "w3": (LAYERS, HIDDEN, DIM), "rms_final": (DIM,), "rope": (2, MAX_LEN, head // 2),
    }  # fmt: skip
    if not tied:
        shapes["wcls"] = (VOCAB, DIM)
    return {name: (rng.normal(size=shape) * 0.4).astype(np.float32) for name, shape in shapes.items()}


def _write(path, tensors, tied):
    header = np.array([DIM, HIDDEN, LAYERS, HEADS, KV_HEADS, VOCAB if tied else -VOCAB, MAX_LEN], np.int32)
    path.write_bytes(header.tobytes() + b"".join(x.tobytes() for x in tensors.values()))
    return path


def _run_c(tensors, tokens):
    """The forward of run.c in float64, a token at a time: neighbouring pairs are rotated, kv heads are repeated."""
    w = {name: x.astype(np.float64) for name, x in tensors.items()}
    head, logits = DIM // HEADS, []
    keys, values = [[] for _ in range(LAYERS)], [[] for _ in range(LAYERS)]

    def norm(x, scale):
        return x / np.sqrt(np.mean(x * x) + 1e-5) * scale

    def rotate(x, position):
        x = x.reshape(-1, head // 2, 2)
        angle = position * 10_000.0 ** (-2 * np.arange(head // 2) / head)
        cos, sin = np.cos(angle), np.sin(angle)
        return np.stack([x[..., 0] * cos - x[..., 1] * sin, x[..., 0] * sin + x[..., 1] * cos], -1).reshape(-1, head)

    for position, token in enumerate(tokens):
        x = w["token_embedding"][token]
        for i in range(LAYERS):
            y = norm(x, w["rms_att"][i])
            q = rotate(w["wq"][i] @ y, position)
            keys[i].append(rotate(w["wk"][i] @ y, position))
            values[i].append((w["wv"][i] @ y).reshape(-1, head))
            out = []
            for h in range(HEADS):
                kv = h // (HEADS // KV_HEADS)
                weights = np.exp([q[h] @ k[kv] / np.sqrt(head) for k in keys[i]])
                out.append(sum(a * v[kv] for a, v in zip(weights / weights.sum(), values[i], strict=True)))
            x = x + w["wo"][i] @ np.concatenate(out)
            y = norm(x, w["rms_ffn"][i])
            gate = w["w1"][i] @ y
            x = x + w["w2"][i] @ (gate / (1 + np.exp(-gate)) * (w["w3"][i] @ y))
        logits.append(w.get("wcls", w["token_embedding"]) @ norm(x, w["rms_final"]))
    return np.stack(logits)


@pytest.mark.slow
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_equals_run_c_written_in_numpy(tied, tmp_path):
    tensors = _tensors(tied)
    config, params = llama2c.load(_write(tmp_path / "model.bin", tensors, tied))
    assert config.tied_head == tied
    model = make_transformer(config)
    tokens = np.random.default_rng(1).integers(0, VOCAB, 9).astype(np.int32)
    batch = TokenBatch(tokens[None], np.arange(9, dtype=np.int32)[None], np.ones((1, 9), np.int32))
    logits = model.unembed(params, model.apply(params, batch))[0]
    np.testing.assert_allclose(logits, _run_c(tensors, tokens), atol=2e-5, rtol=1e-5)


def test_files_that_do_not_fit_are_named_with_their_sizes(tmp_path):
    path = _write(tmp_path / "model.bin", _tensors(True), True)
    whole = path.read_bytes()
    path.write_bytes(whole[:-4])
    message = rf"model.bin: {len(whole) - 4} bytes, but its header requires {len(whole)}; is the download complete"
    with pytest.raises(ValueError, match=message):
        llama2c.load(path)
    path.write_bytes(whole + b"\0")
    with pytest.raises(ValueError, match=f"{len(whole) + 1} bytes, but its header requires {len(whole)}"):
        llama2c.load(path)
    path.write_bytes(whole[:10])
    with pytest.raises(ValueError, match="model.bin: 10 bytes are too few for a llama2.c header of 28"):
        llama2c.load(path)
    path.write_bytes(bytes(100))
    with pytest.raises(ValueError, match="not a llama2.c version 0 header: dim=0"):
        llama2c.load(path)
    with pytest.raises(FileNotFoundError):
        llama2c.load(tmp_path / "missing.bin")
    with pytest.raises(ValueError, match="tok512.bin"):
        llama2c.load(shared_data("models/tok512.bin"))
