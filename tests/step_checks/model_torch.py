"""The tiny transformer, its scores, AdamW and clipping again: plain torch in float64.

Nothing here reads rl_jax. Params are a flat dict "layers/q/kernel" -> tensor, those of the layers stacked on L; with
adapters "base/..." and "adapters/..." (see `merged`).
"""

import math

import torch

torch.set_num_threads(1)  # arrays of some hundred numbers
HEADS, KV_HEADS, HEAD_DIM, THETA, NORM_EPS = 2, 1, 8, 10_000.0, 1e-5  # of the model that the checks train


def rms_norm(x, scale):
    """x scale / sqrt(mean(x^2) + eps)."""
    return x * scale / torch.sqrt((x * x).mean(-1, keepdim=True) + NORM_EPS)


def rotate(x):
    """RoPE on halves, positions from 0. x: [B, T, H, h]."""
    half = HEAD_DIM // 2
    frequencies = THETA ** (-torch.arange(half, dtype=x.dtype) / half)
    angle = torch.arange(x.shape[1], dtype=x.dtype)[:, None, None] * frequencies
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * angle.cos() - second * angle.sin(), second * angle.cos() + first * angle.sin()], dim=-1)


def hidden_states(params, rows):
    """The normed hidden states of rows that all begin in column 0, [B, T, D]; behind a row's end they mean nothing."""
    length = max(len(prompt) + len(completion) for prompt, completion in rows)
    ids = torch.tensor(
        [[*prompt, *completion] + [0] * (length - len(prompt) - len(completion)) for prompt, completion in rows]
    )
    x = params["embed/embedding"][ids]
    causal = torch.ones(length, length, dtype=torch.bool).tril()
    for layer in range(params["layers/q/kernel"].shape[0]):
        of = {name: params[f"layers/{name}"][layer] for name in LAYER}
        y = rms_norm(x, of["attention_norm/scale"])
        q = rotate((y @ of["q/kernel"]).reshape(*ids.shape, HEADS, HEAD_DIM))
        k = rotate((y @ of["k/kernel"]).reshape(*ids.shape, KV_HEADS, HEAD_DIM))
        v = (y @ of["v/kernel"]).reshape(*ids.shape, KV_HEADS, HEAD_DIM)
        k, v = (t.repeat_interleave(HEADS // KV_HEADS, dim=2) for t in (k, v))
        scores = torch.einsum("bthd,bshd->bhts", q, k) / math.sqrt(HEAD_DIM)
        weights = scores.masked_fill(~causal, -math.inf).softmax(-1)
        x = x + torch.einsum("bhts,bshd->bthd", weights, v).reshape(*ids.shape, -1) @ of["o/kernel"]
        y = rms_norm(x, of["mlp_norm/scale"])
        gate = y @ of["gate/kernel"]
        x = x + (gate * torch.sigmoid(gate) * (y @ of["up/kernel"])) @ of["down/kernel"]
    return rms_norm(x, params["final_norm/scale"])


LAYER = ("attention_norm/scale", "mlp_norm/scale")
LAYER += tuple(f"{name}/kernel" for name in ("q", "k", "v", "o", "gate", "up", "down"))


def scores(params, rows, temperature, length, top_k=0):
    """Log-probs and entropies of the completions' tokens at a temperature, 0 behind their ends.

    Args:
      params: of the model.
      rows: (prompt ids, completion ids) of each row.
      temperature: of the policy.
      length: C.
      top_k: how many tokens are kept; 0 keeps all.

    Returns:
      (log_probs, entropies), [B, C] each.
    """
    logits, log_probs, entropies = hidden_states(params, rows) @ params["head/kernel"] / temperature, [], []
    if top_k:
        logits = torch.where(logits >= logits.topk(top_k).values[..., -1:], logits, -1e9)
    everything = torch.log_softmax(logits, -1)
    for row, (prompt, completion) in enumerate(rows):
        # A token is predicted from the column before it.
        seen = everything[row, len(prompt) - 1 : len(prompt) - 1 + len(completion)]
        log_probs.append(pad(seen[torch.arange(len(completion)), torch.tensor(completion)], length))
        entropies.append(pad(-(seen.exp() * seen).sum(-1), length))
    return torch.stack(log_probs), torch.stack(entropies)


def values(params, rows, length):
    """The value head before each token and after the last one, [B, C + 1]; 0 after that."""
    found = (hidden_states(params, rows) @ params["value_head/kernel"] + params["value_head/bias"])[..., 0]
    ends = [(len(prompt) - 1, len(prompt) + len(completion)) for prompt, completion in rows]
    return torch.stack([pad(found[row, start:end], length + 1) for row, (start, end) in enumerate(ends)])


def pad(x, length):
    """x [n] with zeros up to `length`."""
    return torch.cat([x, x.new_zeros(length - len(x))])


def merged(params, scale):
    """W + scale a b for each adapter; W itself gets no gradient. Without adapters the params themselves."""
    if not any(name.startswith("adapters/") for name in params):
        return params
    result = {name.removeprefix("base/"): x for name, x in params.items() if not name.startswith("adapters/")}
    for name, a in params.items():
        if name.startswith("adapters/") and name.endswith("/a"):
            kernel = name.removeprefix("adapters/").removesuffix("/a") + "/kernel"
            result[kernel] = result[kernel] + scale * (a @ params[name.removesuffix("/a") + "/b"])
    return result


def is_trained(name):
    """All but the base of adapters."""
    return not name.startswith("base/")


class AdamW:
    """AdamW after a clip of the global norm, with a linear warm-up and a cosine decay of the rate."""

    def __init__(self, *, rate, warmup, decay, final, b1, b2, eps, weight_decay, max_norm):
        self.rate, self.warmup, self.decay, self.final = rate, warmup, decay, final
        self.b1, self.b2, self.eps, self.weight_decay, self.max_norm = b1, b2, eps, weight_decay, max_norm
        self.count, self.mean, self.square = 0, {}, {}

    def rate_at(self, count):
        """The learning rate of update `count`, from 0."""
        if count < self.warmup:
            return self.rate * (count + 1) / self.warmup
        done = min((count - self.warmup) / self.decay, 1.0)
        return self.rate * (self.final + (1 - self.final) * 0.5 * (1 + math.cos(math.pi * done)))

    def step(self, params, loss):
        """(params after one update, metrics). loss: params -> float64 []."""
        leaves = {name: x.detach().clone().requires_grad_(is_trained(name)) for name, x in params.items()}
        value = loss(leaves)
        trained = [name for name in leaves if is_trained(name)]
        found = torch.autograd.grad(value, [leaves[name] for name in trained], allow_unused=True)
        gradients = {
            name: torch.zeros_like(params[name]) if g is None else g for name, g in zip(trained, found, strict=True)
        }
        norm = math.sqrt(sum(float((g * g).sum()) for g in gradients.values()))
        scale = min(1.0, self.max_norm / max(norm, 1e-30))
        rate, self.count = self.rate_at(self.count), self.count + 1
        result = dict(params)
        for name, g in gradients.items():
            g = g * scale
            self.mean[name] = self.b1 * self.mean.get(name, 0.0) + (1 - self.b1) * g
            self.square[name] = self.b2 * self.square.get(name, 0.0) + (1 - self.b2) * g * g
            mean = self.mean[name] / (1 - self.b1**self.count)
            root = (self.square[name] / (1 - self.b2**self.count)).sqrt()
            result[name] = params[name] - rate * (mean / (root + self.eps) + self.weight_decay * params[name])
        return result, {"loss": float(value.detach()), "grad_norm": norm, "lr": rate}
