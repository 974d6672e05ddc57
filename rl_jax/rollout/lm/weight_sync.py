"""Weights for a server: saved into a folder that both machines see, then loaded by the server on request.

`config.rollout.engine.sync` names one of these functions, with its keywords:

    --config.rollout.engine.sync="{'fn': 'vllm', 'folder': '/shared/policy'}"
    --config.rollout.engine.sync="{'fn': 'sglang', 'folder': '/shared/policy'}"

The requests were written against the sources of the servers as published on GitHub and are tested against a loopback
server that answers like them; neither function has ever run against a real one. A bad sync shows in sampler/gap_max.
"""

import os
import pathlib
import shutil
import uuid
from collections.abc import Callable

from rl_jax.core.types import Params
from rl_jax.rollout.lm.client import Client

_WEIGHTS = "*.safetensors"


def vllm(params: Params, *, url: str, save: Callable, folder: str, timeout_s: float = 600.0) -> None:
    """Weights to a vLLM server that was started from `folder`, which it reads again.

        cp -rL FOLDER /shared/policy
        VLLM_SERVER_DEV_MODE=1 vllm serve /shared/policy --logprobs-mode processed_logprobs

    POST /collective_rpc {"method": "reload_weights"}, then POST /reset_prefix_cache, since cached prompts are those of
    the old weights. vLLM has both only in its development mode, whose other requests are dangerous: let nobody else
    reach its port.

    Args:
      params: of the model.
      url: of the server; the engine's own.
      save: (folder, params) -> None, which writes a model's folder; the program's own.
      folder: that the server was started from, as this machine sees it. Its weights are replaced.
      timeout_s: for each request; the engine's own.

    Raises:
      ConnectionError: if the server cannot be reached.
      TimeoutError: if it is too slow.
      RuntimeError: if it refuses.
      FileNotFoundError: if there is no folder, which the server would have been started from.
    """
    if not (pathlib.Path(folder) / "config.json").is_file():
        raise FileNotFoundError(
            f"rollout.engine.sync.folder={folder} has no config.json: it is the folder that vLLM was started from"
        )
    _replace(save, folder, params)
    client = Client(url, timeout_s=timeout_s)
    client.post("/collective_rpc", {"method": "reload_weights"})
    _check(client, "/reset_prefix_cache", client.post("/reset_prefix_cache", {}))


def sglang(params: Params, *, url: str, save: Callable, folder: str, timeout_s: float = 600.0) -> None:
    """Weights to an SGLang server, which loads `folder` in place of its own and forgets its cached prompts.

        python -m sglang.launch_server --model-path FOLDER

    POST /update_weights_from_disk {"model_path": folder}. The server must return token ids from /v1/completions when
    asked with return_token_ids, which SGLang does since July 2026; an answer without them stops the run.

    Args:
      params: of the model.
      url: of the server; the engine's own.
      save: (folder, params) -> None, which writes a model's folder; the program's own.
      folder: to write to, with the same path on both machines.
      timeout_s: for the request; the engine's own.

    Raises:
      ConnectionError: if the server cannot be reached.
      TimeoutError: if it is too slow.
      RuntimeError: if it refuses.
    """
    _replace(save, folder, params)
    client = Client(url, timeout_s=timeout_s)
    path = "/update_weights_from_disk"
    _check(client, path, client.post(path, {"model_path": str(pathlib.Path(folder).absolute())}))


def _replace(save: Callable, folder: str | os.PathLike, params: Params) -> None:
    """Puts what `save` writes into a folder, file by file, and removes shards of earlier weights.

    Nothing is replaced before all of it is written.

    Args:
      save: (folder that does not exist, params) -> None.
      folder: made if it does not exist.
      params: of the model.
    """
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / f".{uuid.uuid4().hex}.partial"
    try:
        save(partial, params)
        names = {path.name for path in partial.iterdir() if path.is_file()}
        for name in sorted(names):
            os.replace(partial / name, folder / name)
        for path in folder.glob(_WEIGHTS):
            if path.name not in names:
                path.unlink()
        index = folder / "model.safetensors.index.json"
        if index.name not in names:
            index.unlink(missing_ok=True)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _check(client: Client, path: str, answer) -> None:
    """Raises RuntimeError if an answer says {"success": false}. Older servers answer nothing."""
    if isinstance(answer, dict) and answer.get("success") is False:
        raise RuntimeError(f"{client.address}{path}: the server refused: {answer.get('message') or answer}")
