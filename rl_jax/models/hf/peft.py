"""Adapters in the format of the package PEFT: adapter_config.json and adapter_model.safetensors.

Module names come from rl_jax.models.hf.families, so an adapter trained here opens in PEFT on the same base model, and
vice versa.
"""

import json
import os
import pathlib
import shutil
import uuid
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import safetensors
from safetensors.numpy import load_file, save_file

from rl_jax.core.types import Params
from rl_jax.models.hf.families import FAMILIES
from rl_jax.models.hf.tensor_files import read_json
from rl_jax.models.lora import LoraConfig, adapter_groups, kernels, nest

CONFIG, TENSORS = "adapter_config.json", "adapter_model.safetensors"
_PREFIX = "base_model.model."
_SUFFIXES = {"a": "lora_A.weight", "b": "lora_B.weight", "magnitude": "lora_magnitude_vector"}
# Fields of adapter_config.json that do not affect a loaded adapter, or that are read below.
_READ_OR_IDLE = {
    "task_type", "peft_type", "auto_mapping", "peft_version", "base_model_name_or_path", "revision", "inference_mode",
    "r", "lora_alpha", "lora_dropout", "target_modules", "exclude_modules", "use_rslora", "use_dora", "layers_pattern",
    "megatron_core", "qalora_group_size", "init_lora_weights", "bias", "ensure_weight_tying",
}  # fmt: skip


def save_peft(
    folder: str | pathlib.Path,
    config: LoraConfig,
    adapters: Params,
    *,
    model_type: str,
    base_model: str = "",
    revision: str | None = None,
) -> None:
    """Writes the folder that `peft.PeftModel.from_pretrained` opens on the base model: all of it, or nothing.

    Single process only.

    Args:
      folder: must not exist yet, or be empty.
      config: of the adapters.
      adapters: as from lora.init_lora.
      model_type: the base model's, as in its config.json.
      base_model: its name or folder, for the reader.
      revision: its commit, if it is of the Hub.

    Raises:
      ValueError: if PEFT's LoRA cannot express the family or a kernel.
      FileExistsError: if the folder exists and is not empty.
    """
    folder = pathlib.Path(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FileExistsError(f"{folder} exists and is not empty: give a new folder, or remove this one first")
    tensors, modules = {}, set()
    for name, adapter in adapter_groups(adapters).items():
        stacked = name.startswith("layers/")
        for layer in range(adapter["a"].shape[0]) if stacked else (None,):
            module = module_name(model_type, name, layer)
            if module is None:
                raise ValueError(
                    f"{name!r} of {model_type} is not a linear module in transformers: merge the adapters and save the "
                    "model instead"
                )
            modules.add(module.rpartition(".")[2])
            for part, suffix in _SUFFIXES.items():
                if part in adapter:
                    leaf = np.asarray(adapter[part] if layer is None else adapter[part][layer])
                    tensors[f"{_PREFIX}{module}.{suffix}"] = np.ascontiguousarray(leaf.T)
    alpha = int(config.alpha) if float(config.alpha).is_integer() else float(config.alpha)
    fields = {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": base_model, "inference_mode": True,
        "revision": revision,
        "r": config.rank, "lora_alpha": alpha, "lora_dropout": 0.0, "bias": "none", "fan_in_fan_out": False,
        "target_modules": sorted(modules), "use_rslora": config.variant == "rslora",
        "use_dora": config.variant == "dora",
    }  # fmt: skip
    partial = folder.parent / f".{folder.name}.{uuid.uuid4().hex}.partial"
    partial.mkdir(parents=True)
    try:
        (partial / CONFIG).write_text(json.dumps(fields, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        save_file({name: tensors[name] for name in sorted(tensors)}, partial / TENSORS, metadata={"format": "pt"})
        os.rename(partial, folder)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def load_peft(folder: str | pathlib.Path, params: Params, *, model_type: str) -> tuple[LoraConfig, Params]:
    """The config and the adapters of a PEFT folder, for a base model's params (arrays or shapes).

    The adapters keep the file's dtype.

    Args:
      folder: of the adapter.
      params: of the base model.
      model_type: the base model's, as in its config.json.

    Raises:
      ValueError: naming the file and the field or tensor, if there is an unsupported field, a tensor that is missing,
        unexpected or of another shape, or a truncated file.
    """
    folder = pathlib.Path(folder)
    fields = read_json(folder / CONFIG)
    _refuse_unknown(fields, folder / CONFIG)
    try:
        tensors = load_file(folder / TENSORS)
    except (safetensors.SafetensorError, OSError) as error:
        raise ValueError(f"{folder / TENSORS}: missing, truncated or not a safetensors file ({error})") from error
    rank, groups, left = int(fields["r"]), {}, set(tensors)
    for name, kernel in kernels(params).items():
        stacked = name.startswith("layers/")
        layers = range(kernel.shape[0]) if stacked else (None,)
        modules = [module_name(model_type, name, layer) for layer in layers]
        if not any(_touched(module, tensors) for module in modules):
            continue
        adapter = {}
        for part, suffix in _SUFFIXES.items():
            names = [f"{_PREFIX}{module}.{suffix}" for module in modules]
            if part == "magnitude" and not fields.get("use_dora"):
                continue
            shape = {"a": (rank, kernel.shape[-2]), "b": (kernel.shape[-1], rank), "magnitude": kernel.shape[-1:]}[part]
            for tensor in names:
                stored_shape = tensors[tensor].shape if tensor in tensors else None
                if stored_shape != shape:
                    raise ValueError(f"{folder / TENSORS}: {tensor!r} should be {shape}, found {stored_shape}")
            leaves = [tensors[tensor].T for tensor in names]
            adapter[part] = np.stack(leaves) if stacked else np.ascontiguousarray(leaves[0])
            left -= set(names)
        groups[name] = adapter
    if left or not groups:
        what = f"unexpected tensors {', '.join(sorted(left)[:4])}" if left else "no tensor of an adapter"
        raise ValueError(f"{folder / TENSORS}: {what}: is this an adapter of this base model ({model_type})?")
    variant = "dora" if fields.get("use_dora") else "rslora" if fields.get("use_rslora") else "lora"
    config = LoraConfig(rank, fields["lora_alpha"], "|".join(sorted(groups)), variant)
    return config, jax.tree.map(np.ascontiguousarray, nest(groups))


def module_name(model_type: str, name: str, layer: int | None) -> str | None:
    """The module in transformers of a kernel of ours: ("llama", "layers/q", 3) -> "model.layers.3.self_attn.q_proj".

    Returns:
      The name; None if it is not a linear module there (experts).

    Raises:
      ValueError: if the family is unknown, or PEFT's LoRA does not fit it.
    """
    if model_type not in FAMILIES:
        raise ValueError(f"unknown model_type {model_type!r}; supported are {', '.join(FAMILIES)}")
    family = FAMILIES[model_type]
    if family.conv1d:
        raise ValueError(
            f"{model_type} keeps q, k and v in one matrix (c_attn): PEFT has no adapter of one of them alone; merge "
            "the adapters and save the model instead"
        )
    if name == "head":
        return "lm_head"
    tensor = family.layer.get(name.removeprefix("layers/") + "/kernel")
    if tensor is None or name.startswith("layers/experts/"):
        return None
    return f"{family.layer_prefix}{layer}.{tensor.removesuffix('.weight')}"


def _touched(module: str, tensors: Mapping[str, Any]) -> bool:
    return any(f"{_PREFIX}{module}.{suffix}" in tensors for suffix in _SUFFIXES.values())


def _refuse_unknown(fields: Mapping[str, Any], path: pathlib.Path) -> None:
    if fields.get("peft_type") != "LORA":
        raise ValueError(f"{path}: peft_type is {fields.get('peft_type')!r}, only LORA is read")
    for field in ("r", "lora_alpha"):
        if not isinstance(fields.get(field), (int, float)):
            raise ValueError(f"{path}: {field} is {fields.get(field)!r}, expected a number")
    wrong = [f"{name}={value!r}" for name, value in fields.items() if value and name not in _READ_OR_IDLE]
    if fields.get("bias", "none") != "none":
        wrong.append(f"bias={fields['bias']!r}")
    if fields.get("use_dora") and fields.get("use_rslora"):
        wrong.append("use_dora with use_rslora")
    start = fields.get("init_lora_weights", True)  # some of these change the base model's weights
    if not isinstance(start, bool) and start not in ("gaussian", "orthogonal"):
        wrong.append(f"init_lora_weights={start!r}")
    if wrong:
        raise ValueError(f"{path}: not supported: {', '.join(wrong)}")
