"""What a run gets out of its devices: model FLOPs and tokens per second, MFU, memory. Every program's timing.jsonl.

    forward  = 2 N tokens + sum over layers of 4 H h pairs + 2 D V scored
    step     = 3 forward;  with adapters (LoRA) 2 (forward - attention) + 3 attention
    MFU      = step / seconds in updates / devices that train / peak FLOP/s of a device

N are the weights of the layers' products, H h the width of the query heads, D V the head's weights. Pairs are queries
with a key that they see. Padding and absent responses do not count, nor do recomputation (remat), a reference's forward
and the optimizer: these are model FLOPs, as in arXiv 2204.02311, appendix B. Seconds are those of train_s, packing
included.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import numpy as np

from experiments.parts.peaks import peak_flops
from rl_jax.core.types import Packed, TokenBatch
from rl_jax.models.transformer.config import TransformerConfig

RATES = ("tokens_per_s", "env_steps_per_s")
MEMORY = ("bytes_in_use", "peak_bytes_in_use")  # of jax.Device.memory_stats


def body_weights(model: TransformerConfig) -> int:
    """N: the weights that one token meets in the layers' products. Of experts, those that run, and the router."""
    heads = (2 * model.num_heads + 2 * model.num_kv_heads) * model.head_dim
    mlp = (3 if model.gated_mlp else 2) * model.mlp_dim * max(model.experts_per_token, 1) + model.num_experts
    return model.num_layers * model.embed_dim * (heads + mlp)


def train_flops(
    model: TransformerConfig, *, tokens: float, pairs: float, scored: float, only_adapters: bool = False
) -> float:
    """Model FLOPs of forward and backward.

    Args:
      model: its sizes.
      tokens: that are no padding.
      pairs: of a query and a key that it sees, summed over the layers.
      scored: tokens whose logits are formed.
      only_adapters: whether the gradients of the weights themselves are not needed.
    """
    weights = 2.0 * body_weights(model) * tokens + 2.0 * model.embed_dim * model.vocab_size * scored
    return (2 if only_adapters else 3) * weights + 3 * 4.0 * model.num_heads * model.head_dim * pairs


def work_of(batch: Any, windows: Iterable[int]) -> tuple[float, float, float] | None:
    """(tokens, pairs, scored) of one update, as `train_flops` takes them; None if it reads no tokens.

    In several processes each counts its own rows, and takes the others' for as full as those.

    Args:
      batch: of any program; on the mesh, or numpy arrays.
      windows: of each layer; 0 is none.
    """
    inputs, mask, present = _inputs_of(batch)
    if inputs is None:
        return None
    rows = inputs.rows if isinstance(inputs, Packed) else inputs
    segments, more = _local(rows.segment_ids)
    real = segments != 0
    if present is not None and not isinstance(inputs, Packed):  # rows of absent responses hold a copy, or nothing
        there = _local(present)[0].reshape(-1, 1)
        real = (real.reshape(len(there), -1) & there).reshape(real.shape)
        mask = _local(mask)[0].reshape(len(there), -1) & there if mask is not None else None
    seen = np.where(real, _local(rows.positions)[0].astype(np.int64) + 1, 0)
    layers: dict[int, int] = {}
    for window in windows:
        layers[window] = layers.get(window, 0) + 1
    pairs = sum(count * np.minimum(seen, window or seen.max(initial=0)).sum() for window, count in layers.items())
    scored = _local(inputs.counts if isinstance(inputs, Packed) else mask)[0].sum() if mask is not None else 0
    return more * float(real.sum()), more * float(pairs), more * float(scored)


def _inputs_of(batch: Any) -> tuple[TokenBatch | Packed | None, Any, Any]:
    """(what the model reads, the mask of what is scored, that of the rows that are there) of a batch.

    It is a NamedTuple, or the SFT's pair. The last two are None if the batch has none.
    """
    if isinstance(batch, (TokenBatch, Packed)):
        return batch, None, None
    if not isinstance(batch, tuple):
        return None, None, None
    for part in batch:
        inputs, mask, present = _inputs_of(part)
        if inputs is not None:
            of_pair = None if hasattr(batch, "_fields") or len(batch) < 2 else batch[1]
            mask = mask if mask is not None else getattr(batch, "completion_mask", of_pair)
            return inputs, mask, present if present is not None else getattr(batch, "present", None)
    return None, None, None


def _local(x: Any) -> tuple[np.ndarray, float]:
    """(this process's part of an array, how many times that all of them are)."""
    if not isinstance(x, jax.Array) or x.is_fully_addressable:
        return np.asarray(x), 1.0
    parts = {str(shard.index): np.asarray(shard.data) for shard in x.addressable_shards}
    whole = np.concatenate([part.ravel() for part in parts.values()])
    return whole, x.size / whole.size


class Meter:
    """Counts the updates of a step, and makes rates of them."""

    def __init__(
        self,
        devices: Iterable[jax.Device],
        sizes: Callable[[], TransformerConfig] | None,
        others: Iterable[jax.Device] = (),
        *,
        only_adapters: bool = False,
        peak: float = 0.0,
    ):
        """A meter with nothing counted.

        Args:
          devices: that train.
          sizes: () -> those of the trained model; None if it is no transformer, or not known.
          others: devices of the run that only sample. They count in the rates of a whole step and in the memory.
          only_adapters: as in train_flops.
          peak: FLOP/s of one device; 0: that of its kind (peaks.PEAKS), if it is known.
        """
        self._devices, self._others = list(devices), list(others)
        self._sizes, self._model = sizes, None
        self._only_adapters = only_adapters
        self._peak = peak_flops(self._devices[0].device_kind, peak) if self._devices else 0.0
        self._tokens = self._flops = 0.0

    def count(self, batch: Any, *, head: bool = True) -> None:
        """Adds one update.

        Args:
          batch: of the update.
          head: whether the logits of the scored tokens are formed; a critic and a reward model form none.
        """
        if self._sizes is None:
            return
        model = self._model = self._model or self._sizes()
        if (work := work_of(batch, model.windows or (0,) * model.num_layers)) is None:
            return
        tokens, pairs, scored = work
        self._tokens += tokens
        self._flops += train_flops(
            model, tokens=tokens, pairs=pairs, scored=scored if head else 0.0, only_adapters=self._only_adapters
        )

    def rates(self, timings: Mapping[str, float]) -> dict[str, float]:
        """What a step's row of timing.jsonl gets besides its phases; the counts begin anew.

        Args:
          timings: of the step. train_s are the seconds of its updates.

        Returns:
          tokens_per_s_per_device or env_steps_per_s_per_device; of the updates train_tokens_per_s_per_device (prompts
          and completions), train_flops_per_s_per_device and, if the devices' peak is known, mfu; bytes_in_use and
          peak_bytes_in_use of this process's fullest device, if the backend tells.
        """
        every, (tokens, flops) = self._devices + self._others, (self._tokens, self._flops)
        self._tokens = self._flops = 0.0
        result = {f"{name}_per_device": timings[name] / max(len(every), 1) for name in RATES if timings.get(name)}
        if tokens and timings.get("train_s"):
            per_device = 1.0 / timings["train_s"] / max(len(self._devices), 1)
            result["train_tokens_per_s_per_device"] = tokens * per_device
            result["train_flops_per_s_per_device"] = flops * per_device
            if self._peak:
                result["mfu"] = flops * per_device / self._peak
        return result | memory(every)


def memory(devices: Iterable[jax.Device]) -> dict[str, float]:
    """Bytes in use, and the most so far, on this process's fullest device; {} if the backend does not tell."""
    own = [device for device in devices if device.process_index == jax.process_index()]
    stats = [device.memory_stats() or {} for device in own]
    return {name: float(max(s[name] for s in stats)) for name in MEMORY if stats and all(name in s for s in stats)}
