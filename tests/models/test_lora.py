"""Adapters against the PEFT package: logits and gradients on tiny random models, folders in both directions."""

import dataclasses
import functools
import json

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import optax
import peft
import pytest
import torch
import transformers

from rl_jax.core.types import TokenBatch
from rl_jax.models.hf import loading
from rl_jax.models.hf.peft import load_peft, save_peft
from rl_jax.models.lora import LoraConfig, adapter_groups, attach, init_lora, kernels, merge, with_adapters
from rl_jax.models.partition import freeze, frozen_mask, parameter_table, stop_frozen
from rl_jax.models.transformer.blocks import Dense
from rl_jax.models.transformer.model import TransformerConfig, make_transformer

# peft still asks transformers under a name that it is giving up.
pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")

SIZES = dict(
    vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, head_dim=8, tie_word_embeddings=False,
)  # fmt: skip
CONFIGS = {
    "llama": transformers.LlamaConfig(**SIZES),
    "qwen2": transformers.Qwen2Config(**{k: v for k, v in SIZES.items() if k != "head_dim"}),
    "gemma3_text": transformers.Gemma3TextConfig(**SIZES | {"tie_word_embeddings": True}, sliding_window=4),
    "mistral": transformers.MistralConfig(**SIZES, sliding_window=4),
    "qwen3": transformers.Qwen3Config(**SIZES),
    "gemma2": transformers.Gemma2Config(**SIZES | {"tie_word_embeddings": True}, sliding_window=4),
    "qwen3_moe": transformers.Qwen3MoeConfig(
        **SIZES, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, norm_topk_prob=True
    ),
}
TOKENS = np.random.default_rng(0).integers(0, 64, (2, 9))
VARIANTS = {"lora": {}, "rslora": {"use_rslora": True}, "dora": {"use_dora": True}}
TARGETS = {"layers/(q|v|down)": ["q_proj", "v_proj", "down_proj"]}


@pytest.fixture(scope="module")
def bases(tmp_path_factory):
    """model_type -> (folder, our config, our params)."""
    found = {}
    for name, config in CONFIGS.items():
        torch.manual_seed(0)
        folder = tmp_path_factory.mktemp("bases") / name
        model = transformers.AutoModelForCausalLM.from_config(config)
        for parameter in model.parameters():  # its own 0.02 would hide a wrong scale
            parameter.data.normal_(0, 0.2)
        model.save_pretrained(folder)
        found[name] = (folder, *loading.load(folder))
    return found


SMALL = TransformerConfig(
    vocab_size=64, embed_dim=32, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=8, mlp_dim=48, tied_head=False
)


def perturbed(params):
    """Params without zeros, as after training."""
    rng = np.random.default_rng(2)
    return jax.tree.map(lambda leaf: leaf + jnp.asarray(0.1 * rng.normal(size=leaf.shape), jnp.float32), params)


def their_base(bases, name):
    return transformers.AutoModelForCausalLM.from_pretrained(bases[name][0], attn_implementation="eager").eval()


def randomised(config, params, seed=1):
    """Adapters as training could have left them: nothing is zero."""
    adapters = init_lora(config, params, jax.random.key(seed))
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda leaf: jnp.asarray(leaf + 0.1 * rng.normal(size=leaf.shape), jnp.float32), adapters)


def our_logits(model, params, tokens=TOKENS):
    rows = jnp.asarray(tokens, jnp.int32)
    positions = jnp.broadcast_to(jnp.arange(rows.shape[1], dtype=jnp.int32)[None], rows.shape)
    return model.unembed(params, model.apply(params, TokenBatch(rows, positions, jnp.ones_like(rows))))


@functools.cache
def jitted_logits(config):
    return jax.jit(functools.partial(our_logits, make_transformer(config)))


def their_logits(model):
    return model(torch.tensor(TOKENS)).logits


def token_loss(logits, tokens=TOKENS):
    """The mean negative log-likelihood of the next tokens."""
    log_probs = jax.nn.log_softmax(logits[:, :-1])
    return -jnp.mean(jnp.take_along_axis(log_probs, jnp.asarray(tokens)[:, 1:, None], axis=-1))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "variant"),
    [
        *(("llama", variant) for variant in VARIANTS),
        *((name, "lora") for name in ("mistral", "qwen3", "gemma2", "qwen3_moe")),
        ("qwen2", "rslora"),
        ("gemma3_text", "dora"),
    ],
)
def test_peft_opens_what_we_save(bases, tmp_path, name, variant):
    _, model_config, params = bases[name]
    targets = "layers/(q|k|v|o|gate|up|down)|head"
    if name == "qwen3_moe":
        targets = "layers/(q|k|v|o)"  # PEFT has no form for experts
    lora = LoraConfig(rank=4, alpha=6, targets=targets, variant=variant)
    adapters = randomised(lora, params)
    save_peft(tmp_path / "adapter", lora, adapters, model_type=name)
    loaded = load_peft(tmp_path / "adapter", params, model_type=name)[1]
    jax.tree.map(np.testing.assert_array_equal, loaded, jax.tree.map(np.asarray, adapters))
    theirs = peft.PeftModel.from_pretrained(their_base(bases, name), tmp_path / "adapter")
    logits_of = jitted_logits(model_config)
    logits = logits_of(jax.jit(merge, static_argnums=0)(lora, params, adapters))
    assert float(jnp.abs(logits - logits_of(params)).max()) > 0.1  # the adapter does something
    np.testing.assert_allclose(logits, their_logits(theirs).detach(), atol=1e-5, rtol=1e-5)
    beside = logits_of(jax.jit(attach, static_argnums=0)(lora, params, adapters))
    np.testing.assert_allclose(beside, their_logits(theirs).detach(), atol=1e-5, rtol=1e-5)
    np.testing.assert_allclose(logits, their_logits(theirs.merge_and_unload()).detach(), atol=1e-5, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["lora", "dora"])
def test_we_open_what_peft_saves_and_the_gradients_agree(bases, tmp_path, variant):
    _, model_config, params = bases["llama"]
    ((targets, modules),) = TARGETS.items()
    settings = peft.LoraConfig(r=4, lora_alpha=16, target_modules=modules, task_type="CAUSAL_LM", **VARIANTS[variant])
    theirs = peft.get_peft_model(their_base(bases, "llama"), settings)
    torch.manual_seed(1)
    for parameter in theirs.parameters():
        if parameter.requires_grad:
            parameter.data += 0.1 * torch.randn(parameter.shape)
    theirs.save_pretrained(tmp_path / "theirs")
    lora, adapters = load_peft(tmp_path / "theirs", params, model_type="llama")
    assert (lora.rank, lora.alpha, lora.variant) == (4, 16, variant)
    assert set(adapter_groups(adapters)) == {"layers/q", "layers/v", "layers/down"}
    assert jax.tree.structure(adapters) == jax.tree.structure(
        init_lora(LoraConfig(4, 16, targets, variant), params, jax.random.key(0))
    )

    model = make_transformer(model_config)

    def loss(adapters):
        return token_loss(our_logits(model, attach(lora, params, adapters)))

    value, gradients = jax.jit(jax.value_and_grad(loss))(adapters)
    rows = torch.tensor(TOKENS)
    expected = torch.nn.functional.cross_entropy(their_logits(theirs)[:, :-1].reshape(-1, 64), rows[:, 1:].reshape(-1))
    expected.backward()
    np.testing.assert_allclose(value, expected.item(), atol=1e-5)
    save_peft(tmp_path / "gradients", lora, gradients, model_type="llama")  # their names for our gradients
    ours = hf_tensors(tmp_path / "gradients")
    named = {n.replace(".default", "").replace("vector.weight", "vector"): p for n, p in theirs.named_parameters()}
    assert len(ours) == len(modules) * 2 * (3 if variant == "dora" else 2)
    for tensor, gradient in ours.items():
        np.testing.assert_allclose(gradient, named[tensor].grad, atol=1e-5, rtol=1e-4, err_msg=tensor)


def hf_tensors(folder):
    from safetensors.numpy import load_file

    return load_file(folder / "adapter_model.safetensors")


@pytest.mark.parametrize("variant", VARIANTS)
def test_round_trips_are_byte_equal(bases, tmp_path, variant):
    params = bases["llama"][2]
    lora = LoraConfig(rank=3, alpha=7.5, targets="layers/(o|up)|head", variant=variant)
    adapters = randomised(lora, params)
    save_peft(tmp_path / "1", lora, adapters, model_type="llama", base_model="a/b")
    loaded_config, loaded = load_peft(tmp_path / "1", params, model_type="llama")
    assert loaded_config == LoraConfig(3, 7.5, "head|layers/o|layers/up", variant)
    assert jax.tree.structure(loaded) == jax.tree.structure(adapters)
    jax.tree.map(np.testing.assert_array_equal, loaded, jax.tree.map(np.asarray, adapters))
    save_peft(tmp_path / "2", loaded_config, loaded, model_type="llama", base_model="a/b")
    for file in ("adapter_model.safetensors", "adapter_config.json"):
        assert (tmp_path / "1" / file).read_bytes() == (tmp_path / "2" / file).read_bytes()
    # PEFT's own file, loaded and saved by it.
    theirs = peft.PeftModel.from_pretrained(their_base(bases, "llama"), tmp_path / "1")
    theirs.save_pretrained(tmp_path / "3", save_embedding_layers=False)
    assert load_peft(tmp_path / "3", params, model_type="llama")[0] == loaded_config
    ours, saved = hf_tensors(tmp_path / "1"), hf_tensors(tmp_path / "3")
    assert set(ours) == set(saved)
    for name in ours:
        np.testing.assert_array_equal(ours[name], saved[name], err_msg=name)


def test_a_new_adapter_changes_nothing_and_starts_as_pefts_does(bases):
    params = bases["llama"][2]
    for variant in ("lora", "dora"):
        lora = LoraConfig(4, 8, "layers/(q|gate)", variant)
        adapters = init_lora(lora, params, jax.random.key(0))
        merged = merge(lora, params, adapters)
        assert jax.tree.structure(merged) == jax.tree.structure(params)
        jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=2e-6), merged, params)
        a = np.asarray(adapters["layers"]["q"]["a"])
        assert a.shape == (2, 32, 4) and np.abs(a).max() <= 32**-0.5 and a.std() == pytest.approx(96**-0.5, rel=0.1)
        assert not np.array_equal(a[0], a[1]) and not np.any(adapters["layers"]["gate"]["b"])


def test_a_base_in_bfloat16_stays_so(bases):
    params = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), bases["llama"][2])
    lora = LoraConfig(4, 8, "layers/q", "dora")
    adapters = randomised(lora, params)
    assert {leaf.dtype for leaf in jax.tree.leaves(adapters)} == {jnp.dtype("float32")}
    merged = merge(lora, params, adapters)
    assert {leaf.dtype for leaf in jax.tree.leaves(merged)} == {jnp.dtype("bfloat16")}
    wide = merge(lora, jax.tree.map(lambda leaf: leaf.astype(jnp.float32), params), adapters)["layers"]["q"]["kernel"]
    np.testing.assert_array_equal(merged["layers"]["q"]["kernel"], wide.astype(jnp.bfloat16))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("remat", ["none", "full"])
def test_beside_its_kernel_an_adapter_is_what_it_is_merged(variant, remat):
    model_config = dataclasses.replace(SMALL, qkv_bias=True, remat=remat)
    model, lora = make_transformer(model_config), LoraConfig(3, 6, "layers/(q|o|gate|down)|head", variant)
    params = perturbed(model.init(jax.random.key(0)))
    adapters = randomised(lora, params)
    attached = attach(lora, params, adapters)
    assert set(attached["layers"]["q"]) - {"lora_factor"} == {"kernel", "bias", "lora_a", "lora_b"}
    assert set(attached["head"]) == {"kernel"}  # merged: only layers add their adapters themselves
    found = {}
    for form in (merge, attach):

        def loss(params, adapters, form=form):
            return token_loss(our_logits(model, form(lora, params, adapters)))

        found[form] = jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))(params, adapters)
    (merged, expected), (beside, gradients) = found[merge], found[attach]
    np.testing.assert_allclose(beside, merged, rtol=1e-6)
    jax.tree.map(functools.partial(np.testing.assert_allclose, atol=2e-6, rtol=1e-4), gradients, expected)
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(gradients[0])), "the base is frozen"
    assert all(np.any(leaf) for leaf in jax.tree.leaves(gradients[1]))


def count_products(jaxpr):
    """The dot_generals of a program, those of a loop's body once."""
    inside = [sub for eqn in jaxpr.eqns for sub in jax.extend.core.jaxprs_in_params(eqn.params)]
    return sum(eqn.primitive.name == "dot_general" for eqn in jaxpr.eqns) + sum(map(count_products, inside))


def test_remat_of_all_but_products_computes_no_more_of_them_with_adapters():
    lora, again = LoraConfig(3, 6, "layers/(q|k|v|o|gate|up|down)"), {}
    params = make_transformer(SMALL).init(jax.random.key(0))
    for remat in ("none", "dots", "full"):
        model, adapters = make_transformer(dataclasses.replace(SMALL, remat=remat)), randomised(lora, params)

        def plain(params, model=model):
            return token_loss(our_logits(model, params))

        def adapted(adapters, model=model):
            return token_loss(our_logits(model, attach(lora, params, adapters)))

        again[remat] = [count_products(jax.make_jaxpr(jax.grad(fn))(x).jaxpr) for fn, x in
                        ((plain, params), (adapted, adapters))]  # fmt: skip
    extra = {remat: [now - once for now, once in zip(again[remat], again["none"], strict=True)] for remat in again}
    assert extra["dots"][1] <= extra["dots"][0] < extra["full"][1]


def test_a_small_change_is_not_rounded_away_in_bfloat16():
    rng = np.random.default_rng(0)
    x, kernel = (jnp.asarray(rng.normal(size=shape), jnp.bfloat16) for shape in ((2048, 64), (64, 32)))
    lora = LoraConfig(4, 4, "layers/q")
    params = {"layers": {"q": {"kernel": kernel}}}
    adapters = {"layers": {"q": {name: jnp.asarray(0.02 * rng.normal(size=shape), jnp.float32)
                                 for name, shape in (("a", (64, 4)), ("b", (4, 32)))}}}  # fmt: skip
    exact = x.astype(jnp.float32) @ adapters["layers"]["q"]["a"] @ adapters["layers"]["q"]["b"]

    def share(form):
        """Of the change of the outputs, how much is there."""
        layer = Dense(32, use_bias=False, dtype=jnp.dtype("bfloat16"))
        moved, start = (layer.apply({"params": p["layers"]["q"]}, x) for p in (form(lora, params, adapters), params))
        assert moved.dtype == jnp.bfloat16
        return jnp.sum((moved - start).astype(jnp.float32) * exact) / jnp.sum(jnp.square(exact))

    assert abs(share(attach) - 1.0) < 0.05 and share(merge) < 0.5


def test_scales():
    assert LoraConfig(4, 8, "x").scale == 2 and LoraConfig(4, 8, "x", "dora").scale == 2
    assert LoraConfig(4, 8, "x", "rslora").scale == 4


def test_experts_get_adapters_of_their_own():
    params = {"layers": {"experts": {"up": jnp.ones((2, 3, 4, 5)), "router": {"kernel": jnp.ones((2, 4, 3))}}}}
    lora = LoraConfig(2, 2, "layers/experts/up")
    adapters = init_lora(lora, params, jax.random.key(0))
    adapters["layers"]["experts"]["up"]["b"] += 1.0
    merged = merge(lora, params, adapters)["layers"]["experts"]
    expected = 1 + np.asarray(adapters["layers"]["experts"]["up"]["a"]).sum(-1, keepdims=True)
    np.testing.assert_allclose(merged["up"], np.broadcast_to(expected, (2, 3, 4, 5)), rtol=1e-6)
    assert set(kernels(params)) == {"layers/experts/up", "layers/experts/router"}
    with pytest.raises(ValueError, match="not a linear module in transformers"):
        save_peft("unused", lora, adapters, model_type="qwen3_moe")


@pytest.mark.slow
def test_training_moves_the_adapters_only(bases):
    _, model_config, params = bases["llama"]
    lora = LoraConfig(4, 8, "layers/(q|v)", "dora")
    model = make_transformer(model_config)
    model = model._replace(apply=with_adapters(lora, model.apply), unembed=with_adapters(lora, model.unembed))
    both = {"base": params, "adapters": init_lora(lora, params, jax.random.key(0))}
    optimizer = freeze(optax.adamw(1e-2, weight_decay=0.1), "base")
    opt_state = optimizer.init(both)

    @jax.jit
    def step(both, opt_state):
        value, gradients = jax.value_and_grad(lambda p: token_loss(our_logits(model, p)))(both)
        updates, opt_state = optimizer.update(gradients, opt_state, both)
        return optax.apply_updates(both, updates), opt_state, value, optax.tree.norm(gradients["base"])

    losses, start = [], both
    for _ in range(20):
        both, opt_state, value, base_norm = step(both, opt_state)
        losses.append(float(value))
    assert losses[-1] < losses[0] - 0.1 and float(base_norm) == 0.0
    jax.tree.map(np.testing.assert_array_equal, both["base"], start["base"])
    moved = jax.tree.map(lambda a, b: bool(jnp.any(a != b)), both["adapters"], start["adapters"])
    assert all(jax.tree.leaves(moved))
    table = parameter_table(both, opt_state, frozen="base")
    count = sum(leaf.size for leaf in jax.tree.leaves(both["adapters"]))
    assert f"{8 * count + 4:,}" in table.splitlines()[-1]  # two moments in float32 and a counter: none for the base


@pytest.mark.slow
def test_frozen_parts_and_their_table():
    params = {
        "embed": {"embedding": jnp.ones((6, 4))},
        "layers": {"q": {"kernel": jnp.ones((2, 4, 4)), "bias": jnp.ones((2, 4), jnp.bfloat16)}},
    }
    assert frozen_mask(params, "embed|layers/q/bias") == {
        "embed": {"embedding": True}, "layers": {"q": {"kernel": False, "bias": True}}
    }  # fmt: skip

    def total(params):
        return sum(jnp.sum(leaf.astype(jnp.float32)) for leaf in jax.tree.leaves(params))

    stopped = jax.grad(lambda params: total(stop_frozen(params, "embed")))(params)
    assert not np.any(stopped["embed"]["embedding"]) and np.all(stopped["layers"]["q"]["kernel"] == 1)
    optimizer = freeze(optax.adam(0.1), "embed")
    state = optimizer.init(params)
    updates, state = optimizer.update(jax.grad(total)(params), state, params)
    assert not np.any(updates["embed"]["embedding"]) and np.all(updates["layers"]["q"]["kernel"] < 0)
    table = parameter_table(params, state, frozen="embed").splitlines()
    cells = {line.split()[0]: line.split()[1:] for line in table[1:-1]}
    assert cells["embed"] == ["24", "0", "96"] and cells["layers/q"] == ["40", "40", "144"]
    assert cells["total"] == ["64", "40", "240", "(62.5", "%", "trained)"]
    assert table[-1].split() == ["optimizer", "state", str(2 * 144 + 4)]
    shapes = jax.eval_shape(lambda: params)
    assert parameter_table(shapes).splitlines()[-1].endswith("(100 % trained)")
    for pattern, message in (("layers/x", "matches no parameter"), ("embed|layers", "freezes every parameter")):
        with pytest.raises(ValueError, match=message + r".*layers/q/kernel"):
            optimizer = freeze(optax.adam(0.1), pattern)
            optimizer.init(params)
    with pytest.raises(ValueError, match="matches no parameter"):
        frozen_mask(params, "embe")  # the whole name of a group, not its beginning


def test_what_an_adapter_cannot_be(bases, tmp_path):
    params = bases["llama"][2]
    with pytest.raises(ValueError, match=r"matches no kernel; the kernels are: head, layers/down"):
        init_lora(LoraConfig(4, 8, "embed"), params, jax.random.key(0))
    with pytest.raises(ValueError, match="rank=0"):
        LoraConfig(0, 8, "head")
    with pytest.raises(ValueError, match="none of lora, rslora, dora"):
        LoraConfig(1, 8, "head", "pissa")
    lora = LoraConfig(4, 8, "layers/q")
    adapters = init_lora(lora, params, jax.random.key(0))
    with pytest.raises(ValueError, match="variant='dora', but the adapter of 'layers/q' holds a, b"):
        merge(LoraConfig(4, 8, "layers/q", "dora"), params, adapters)
    with pytest.raises(ValueError, match="its kernel in the params None"):
        merge(lora, {"head": params["head"]}, adapters)
    with pytest.raises(ValueError, match="c_attn"):
        save_peft(tmp_path / "x", lora, adapters, model_type="gpt2")
    with pytest.raises(ValueError, match="unknown model_type 'rwkv'"):
        save_peft(tmp_path / "x", lora, adapters, model_type="rwkv")
    assert not (tmp_path / "x").exists()
    save_peft(tmp_path / "x", lora, adapters, model_type="llama")
    with pytest.raises(FileExistsError, match="not empty"):
        save_peft(tmp_path / "x", lora, adapters, model_type="llama")


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("peft_type", "IA3", "only LORA is read"),
        ("bias", "all", "bias='all'"),
        ("modules_to_save", ["lm_head"], "modules_to_save"),
        ("rank_pattern", {"q_proj": 8}, "rank_pattern"),
        ("init_lora_weights", "pissa", "init_lora_weights='pissa'"),
        ("use_rslora", True, "use_dora with use_rslora"),
        ("r", None, "r is None"),
        ("r", 8, r"lora_A\.weight' should be \(8, 32\), found \(4, 32\)"),
        ("use_dora", False, "unexpected tensors"),
    ],
)
def test_peft_folders_that_are_refused(bases, tmp_path, field, value, message):
    params = bases["llama"][2]
    lora = LoraConfig(4, 8, "layers/q", "dora")
    save_peft(tmp_path / "x", lora, init_lora(lora, params, jax.random.key(0)), model_type="llama")
    path = tmp_path / "x" / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {field: value}))
    with pytest.raises(ValueError, match=message):
        load_peft(tmp_path / "x", params, model_type="llama")


def test_damaged_peft_folders(bases, tmp_path):
    params = bases["llama"][2]
    lora = LoraConfig(4, 8, "layers/q")
    save_peft(tmp_path / "x", lora, init_lora(lora, params, jax.random.key(0)), model_type="llama")
    three_layers = jax.tree.map(lambda x: jnp.concatenate([x, x[:1]]), params["layers"])
    with pytest.raises(ValueError, match=r"layers\.2\.self_attn\.q_proj\.lora_A\.weight' should be .* found None"):
        load_peft(tmp_path / "x", {**params, "layers": three_layers}, model_type="llama")
    with pytest.raises(ValueError, match="unexpected tensors"):
        load_peft(tmp_path / "x", {"head": params["head"]}, model_type="llama")
    with pytest.raises(ValueError, match="c_attn"):
        load_peft(tmp_path / "x", params, model_type="gpt2")
    tensors = tmp_path / "x" / "adapter_model.safetensors"
    tensors.write_bytes(tensors.read_bytes()[:-8])
    with pytest.raises(ValueError, match=r"adapter_model\.safetensors: missing, truncated"):
        load_peft(tmp_path / "x", params, model_type="llama")
    (tmp_path / "x" / "adapter_config.json").unlink()
    with pytest.raises(ValueError, match=r"adapter_config\.json: cannot be read"):
        load_peft(tmp_path / "x", params, model_type="llama")
