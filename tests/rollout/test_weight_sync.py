"""rollout/lm/weight_sync.py against a loopback server that answers like vLLM's and SGLang's."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.parts import sampler
from experiments.parts.sampler import make_sync
from experiments.parts.setup import make_setup
from rl_jax.rollout.lm import weight_sync
from rl_jax.rollout.lm.sampling import Sampling
from tests.experiments import small, tiny_folder
from tests.rollout.test_external import serving
from tests.tiny import token_batch

pytestmark = pytest.mark.usefixtures("no_waiting")


def saving(params, *, url, timeout_s, save):
    """A sync that only writes."""
    save("folder", params)


def save(folder, params):
    """A folder of as many shards as params says."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"shards": params}))
    for i in range(params):
        (folder / f"model-{i}.safetensors").write_text(f"{i} of {params}")
    if params > 1:
        (folder / "model.safetensors.index.json").write_text("{}")


def content(folder):
    return {path.name: path.read_text() for path in folder.iterdir()}


@pytest.fixture
def folder(tmp_path):
    """A folder that a server was started from, with a tokenizer that no sync touches."""
    save(tmp_path / "policy", 3)
    (tmp_path / "policy" / "tokenizer.json").write_text("kept")
    return tmp_path / "policy"


def test_weights_are_replaced_whole_and_stale_shards_go(folder, tmp_path):
    weight_sync._replace(save, folder, 1)
    save(tmp_path / "one", 1)
    assert content(folder) == content(tmp_path / "one") | {"tokenizer.json": "kept"}
    before = content(folder)

    def fails(folder, params):
        save(folder, params)
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        weight_sync._replace(fails, folder, 2)
    assert content(folder) == before, "and nothing of the part that was written"
    weight_sync._replace(save, tmp_path / "new" / "place", 2)
    assert len(content(tmp_path / "new" / "place")) == 4

    def with_templates(folder, params):
        save(folder, params)
        (folder / "additional_chat_templates").mkdir()
        (folder / "additional_chat_templates" / "tool_use.jinja").write_text("of tools")

    for params in (3, 4):  # templates are no weights: the server has its own
        weight_sync._replace(with_templates, tmp_path / "new" / "place", params)
    assert len(content(tmp_path / "new" / "place")) == 6


def seen_by(server):
    return [(path, body) for path, _, body in server.seen]


def test_what_vllm_is_asked(folder):
    held = []

    def reload(body):
        held.append(content(folder)["config.json"])
        return {"results": [None, None]}

    with serving(None, collective_rpc=reload, reset_prefix_cache=lambda body: (200, b"")) as server:
        weight_sync.vllm(2, url=server.url, save=save, folder=str(folder), timeout_s=60.0)
    assert seen_by(server) == [("/collective_rpc", {"method": "reload_weights"}), ("/reset_prefix_cache", {})]
    assert held == ['{"shards": 2}'], "the folder is whole before the server is asked"


def test_what_sglang_is_asked(tmp_path):
    with serving(None, update_weights_from_disk=lambda body: {"success": True, "message": "ok"}) as server:
        weight_sync.sglang(1, url=server.url + "/v1/", save=save, folder=str(tmp_path / "to"), timeout_s=60.0)
    assert seen_by(server) == [("/update_weights_from_disk", {"model_path": str(tmp_path / "to")})]


@pytest.mark.parametrize(
    ("fn", "answers", "said"),
    [
        ("vllm", dict(collective_rpc=(404, b'{"detail": "Not Found"}')), "/collective_rpc: HTTP 404: Not Found"),
        (
            "vllm",
            dict(collective_rpc={"results": []}, reset_prefix_cache={"success": False}),
            "/reset_prefix_cache: the server refused",
        ),
        (
            "sglang",
            dict(update_weights_from_disk=(400, b'{"success": false, "message": "shapes"}')),
            "/update_weights_from_disk: HTTP 400: shapes",
        ),
        (
            "sglang",
            dict(update_weights_from_disk={"success": False, "message": "busy"}),
            "/update_weights_from_disk: the server refused: busy",
        ),
    ],
)
def test_a_refusal_stops_the_run(folder, fn, answers, said):
    paths = {name: lambda body, answer=answer: answer for name, answer in answers.items()}
    with serving(None, **paths) as server, pytest.raises(RuntimeError, match=said):
        getattr(weight_sync, fn)(1, url=server.url, save=save, folder=str(folder), timeout_s=60.0)


def test_a_passing_failure_is_retried(folder):
    answers = [(503, b"busy"), {"success": True}]
    with serving(None, update_weights_from_disk=lambda body: answers.pop(0)) as server:
        weight_sync.sglang(1, url=server.url, save=save, folder=str(folder), timeout_s=60.0)
    assert len(server.seen) == 2


def test_vllms_folder_must_be_there(tmp_path):
    with pytest.raises(FileNotFoundError, match="sync.folder=.* has no config.json: .*vLLM was started from"):
        weight_sync.vllm(1, url="http://127.0.0.1:9", save=save, folder=str(tmp_path / "nowhere"))
    assert not (tmp_path / "nowhere").exists()


def test_the_config_names_it(tmp_path):
    config = small.config(tmp_path, rollout__engine__name="openai", rollout__engine__url="http://127.0.0.1:9")
    assert make_sync(make_setup(config)) is None
    for spec, said in [
        (dict(fn="vllm"), "rollout.engine.sync='vllm' needs folder: set them beside fn"),
        (dict(fn="vlm", folder="x"), "has no function 'vlm'; it has: .*sglang.*vllm"),
        (dict(fn="sglang", folder="x", path="y"), "takes no keyword 'path'"),
    ]:
        with config.unlocked():
            config.rollout.engine.sync = spec
        with pytest.raises(ValueError, match=said):
            make_sync(make_setup(config))


def test_adapters_are_merged_and_sent_once_for_the_same_params(tmp_path, monkeypatch):
    """Four batches of dynamic sampling ask the server with the same params: they are merged and sent once."""
    config = small.config(tmp_path, rollout__engine__name="openai", rollout__engine__url="http://127.0.0.1:9")
    with config.unlocked():
        config.model.lora.rank = 2
    setup, sent = make_setup(config), []
    monkeypatch.setattr(sampler, "make_sync", lambda setup: sent.append)
    options = dict(completion_length=4, group_size=2, eos_ids=(2,), pad_id=0)
    generate = sampler.make_sampler(setup, 2, sampling=Sampling(temperature=0.5), **options)
    params = setup.init_params()
    for _ in range(3):
        generate._hand_over(params)
    assert len(sent) == 1 and jax.tree.structure(sent[0]) == jax.tree.structure(params["base"])
    moved = params | {"adapters": jax.tree.map(lambda x: x + 1, params["adapters"])}
    generate._hand_over(moved)
    assert len(sent) == 2 and any(np.any(a != b) for a, b in zip(*map(jax.tree.leaves, sent), strict=True))
    batch = jax.tree.map(jnp.asarray, token_batch((3, 4), 6))
    asked = [np.asarray(generate._score(x, batch).log_probs) for x in (params, moved)]
    assert np.any(asked[0] != asked[1]), "the scores are those of the adapters"


@pytest.mark.parametrize("of_folder", [False, True])
@pytest.mark.parametrize("dtype, stored", [("bfloat16", "bfloat16"), ("float32", None)])
def test_what_is_sent_has_the_dtype_that_the_policy_computes_in(tmp_path, monkeypatch, dtype, stored, of_folder):
    config = small.config(tmp_path, rollout__engine__name="openai", rollout__engine__url="http://127.0.0.1:9")
    with config.unlocked():
        config.model.dtype, config.rollout.engine.sync = dtype, dict(fn=f"{__name__}:saving")
        config.model.path = str(tiny_folder.qwen3(tmp_path / "model")) if of_folder else ""
    saved = []
    monkeypatch.setattr(sampler.loading, "save_hf", lambda *_, like, dtype: saved.append(dtype))
    make_sync(make_setup(config))({"x": np.zeros(1)})
    assert saved == [stored]
