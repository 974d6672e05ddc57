"""Themis: losses/reward_model/traces.py, preferences/traced.py, parts/reward_traces.py, tools/tool_traces.py."""

import math
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ml_collections import ConfigDict

from configs.preferences import themis
from experiments.parts import check_config, reward_readers, reward_traces
from experiments.parts.setup import make_setup
from experiments.tools import tool_traces
from rl_jax import preferences
from rl_jax.losses.reward_model.traces import trace_nll
from rl_jax.preferences import traced

WHOLE = "408\nT: check\nA: calculator\nI: 12*34\nO: 408\nR: 44= 00= 88= same"


def test_the_loss_is_the_mean_over_a_pairs_tokens():
    rng = np.random.default_rng(0)
    log_probs, mask = -rng.random((3, 2, 5)).astype(np.float32), rng.random((3, 2, 5)) > 0.4
    mask[1] = False
    expected = [-log_probs[i][mask[i]].mean() if mask[i].any() else 0.0 for i in range(3)]
    slope, found = jax.grad(lambda x: (trace_nll(x, mask).loss.sum(), trace_nll(x, mask)), has_aux=True)(
        jnp.where(mask, log_probs, jnp.nan)
    )
    np.testing.assert_allclose(found.loss, expected, rtol=1e-6)
    assert found.live.tolist() == [True, False, True]
    np.testing.assert_allclose(slope, -1.0 * mask / np.maximum(mask.sum((1, 2), keepdims=True), 1), rtol=1e-6)


def test_a_trace_says_what_the_calculator_says():
    assert traced.with_trace("12*34", "408") == WHOLE
    wrong = WHOLE.replace("408\nT", "418\nT").replace("00= 88= same", "10/ 88= other")
    assert traced.with_trace("12*34", "418") == wrong
    assert traced.with_trace("12*34", "40").endswith("R: 44= 00= _8/ other")
    assert traced.answer_of(WHOLE) == "408"
    for line in ("I: 12*", "I: ", "J: 12*34"):
        assert traced.observe(f"408\nT: check\nA: calculator\n{line}\n") == "O: !"
    assert traced.observe("408\nT: check\nA: search\nI: 12*34\n") == "O: !"


def test_the_mask_against_a_loop():
    """Every token after the answer's line; of the chosen response the answer, too; of observations none if asked."""
    texts = [["40\nI: 2\nO: 40\nR: s", "41\nO: 1\nO: 2\n"], ["4", "\nR"]]
    tokens, there = np.zeros((2, 2, 20), np.int32), np.zeros((2, 2, 20), bool)
    for i, k in np.ndindex(2, 2):
        ids = [ord(letter) for letter in texts[i][k]]
        tokens[i, k, : len(ids)], there[i, k, : len(ids)] = ids, True
        tokens[i, k, len(ids) :] = ord("\n")  # padding is no end of an answer
    for observed, answers in ((-1, True), (-1, False), (ord("O"), False), (ord("O"), True)):
        found = traced.trace_mask(tokens, there, start=ord("\n"), observed=observed, answers=answers)
        for i, k in np.ndindex(2, 2):
            lines, kept = texts[i][k].split("\n"), ""
            for place, line in enumerate(lines):
                on = (answers and k == 0) if place == 0 else observed < 0 or "O" not in line
                kept += ("x" if on else ".") * (len(line) + (place < len(lines) - 1))
            assert "".join("x" if on else "." for on in found[i, k]) == kept.ljust(20, ".")


def test_pairs_differ_in_one_digit(tmp_path):
    found = preferences.load("traced", num_prompts=60, largest=30, data_dir=str(tmp_path)).data_source("train")
    for place in range(len(found)):
        record = found[place]
        (right, wrong), expression = map(traced.answer_of, record["responses"]), record["info"]["expression"]
        assert int(right) == math.prod(map(int, expression.split("*"))) and len(wrong) == len(right) and wrong[0] != "0"
        assert sum(a != b for a, b in zip(right, wrong, strict=True)) == 1 and record["prompt"] == f"{expression}="
        assert record["responses"] == [traced.with_trace(expression, text) for text in (right, wrong)]
    with pytest.raises(ValueError, match="half of largest=3 squared"):
        preferences.load("traced", largest=3, num_prompts=9, data_dir=str(tmp_path))


def test_a_product_is_in_one_split_whichever_factor_comes_first(tmp_path):
    source = preferences.load("traced", num_prompts=60, largest=11, data_dir=str(tmp_path)).data_source
    train, test = (
        {frozenset(record["info"]["expression"].split("*")) for record in map(own.__getitem__, range(len(own)))}
        for own in map(source, ("train", "test"))
    )
    assert test and not train & test


def test_a_model_that_writes_its_call_gets_the_tools_answer():
    """What the model says after its call is cut off: it cannot write the observation itself."""
    said = []

    def ask(texts):
        said.extend(texts)
        if not texts[0].endswith("O: 408\n"):
            return ["T: check\nA: calculator\nI: 12*34\nO: 999\nR: other", "T: check\nA: cal"]
        return ["R: 44= 00= 88= same\nmore", "R: other"]

    own = tool_traces.own_traces(["12*34="] * 2, ["408", "418"], ask)
    assert own == [WHOLE, "418\nT: check\nA: cal\nO: !\nR: other"]
    assert said[:2] == ["12*34=408\n", "12*34=418\n"] and said[2].endswith("I: 12*34\nO: 408\n")


def test_pairs_without_tool_calls_are_refused(monkeypatch, capsys):
    record = {"prompt": "1+1=", "responses": ["2", "3"], "info": {}}
    model = types.SimpleNamespace(config=types.SimpleNamespace(data=ConfigDict({"name": "x"})))
    monkeypatch.setattr(tool_traces, "load_reward_model", lambda run: model)
    loaded = types.SimpleNamespace(data_source=lambda split: [record])
    monkeypatch.setattr(tool_traces.preferences, "load", lambda **fields: loaded)
    assert tool_traces.main(["runs/other"]) == 2
    assert "runs/other: its pairs have no tool calls: give a run of configs" in capsys.readouterr().err


@pytest.mark.slow
def test_the_term_is_added_with_its_weight():
    """Without traces the reader is the plain one; with them its loss is the sum, absent rows left out.

    Two heads: each of them has terms of its own, and the traces' mean is still over prompts.
    """
    config = themis.get_config("smoke")
    config.algorithm.members = 2
    config.model.update(embed_dim=16, num_layers=1, num_heads=2, num_kv_heads=2, head_dim=8, mlp_dim=32)
    setup = make_setup(config)
    reader = reward_readers.make_reader(setup)
    params = reader.add_head(setup.init_params(), jax.random.key(0))
    texts = [traced.with_trace("12*34", text) for text in ("408", "418")]
    arrays, _ = reader.encode([{"prompt": "12*34=", "responses": texts, "rewards": [1.0, 0.0], "info": {}}] * 2)
    batch = reader.batch(arrays, np.arange(2), 3)
    assert batch.extras["trace_mask"].sum((1, 2)).tolist() == [len("".join(texts)) - len("418\n") + 2] * 2 + [0]
    result, metrics = jax.jit(reader.loss)(params, batch)
    expected = float(metrics["compare"].value()) + 2.0 * float(metrics["traces"].value())
    np.testing.assert_allclose(float(result.value()), expected, rtol=1e-5)
    assert float(metrics["traces"].total) / 2 > 3 and float(metrics["traces"].count) == 2  # near log of the alphabet


@pytest.mark.parametrize("arg", [None, "plain", "unwritten", "unobserved,smoke"])
def test_its_config_can_run(arg):
    config = themis.get_config(arg)
    check_config.check(config)
    assert bool(config.algorithm.traces.coef) == (arg not in ("plain", "unwritten"))
    assert config.data.traces == (arg != "plain")


def test_what_does_not_fit_is_refused():
    config = themis.get_config("smoke")
    config.algorithm.reads = "steps"
    with pytest.raises(ValueError, match="needs reads='response', not 'steps'"):
        reward_traces.check(config)
    config = themis.get_config("smoke")
    config.algorithm.traces.start = "ab"
    with pytest.raises(ValueError, match="'ab' must be one token"):
        reward_traces.extended(make_setup(config), None)
