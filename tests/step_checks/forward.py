"""The tiny transformer, AdamW, clipping and schedules in torch float64, written from the equations. No jax, no rl_jax.

Rows are lists of token ids without padding; params are nested dicts of arrays as the programs store them.
"""

import math

import numpy as np
import torch

torch.set_num_threads(1)  # threads cost more than tensors this small


def flatten(tree: dict, above: str = "") -> dict[str, np.ndarray]:
    """{"layers/q/kernel": array} of nested dicts."""
    result = {}
    for name, value in tree.items():
        path = f"{above}/{name}" if above else name
        result |= flatten(value, path) if isinstance(value, dict) else {path: np.array(value, np.float64)}
    return result


def leaves(tree: dict) -> dict[str, torch.Tensor]:
    """The params by path, to be differentiated."""
    return {path: torch.tensor(x, requires_grad=True) for path, x in flatten(tree).items()}


def merged(params: dict, *, scale: float) -> dict:
    """W + scale a b of {"base/...", "adapters/..."}; other groups as they are."""
    result = {path.removeprefix("base/"): x for path, x in params.items() if not path.startswith("adapters/")}
    for path, a in params.items():
        if path.startswith("adapters/") and path.endswith("/a"):
            kernel = f"{path.removeprefix('adapters/').removesuffix('/a')}/kernel"
            result[kernel] = result[kernel].detach() + scale * a @ params[path[:-1] + "b"]
    return result


def _norm(x, scale, eps):
    return x / torch.sqrt((x**2).mean(-1, keepdim=True) + eps) * scale


def _rotate(x, theta):
    """Rotary embedding on halves, x [B, T, H, h] at positions 0 .. T - 1."""
    half = x.shape[-1] // 2
    places, pairs = (torch.arange(n, dtype=torch.float64) for n in (x.shape[1], half))
    angle = places[:, None] * theta ** (-pairs / half)
    sin, cos = torch.sin(angle)[None, :, None], torch.cos(angle)[None, :, None]
    left, right = x[..., :half], x[..., half:]
    return torch.cat([left * cos - right * sin, right * cos + left * sin], -1)


def hidden(params: dict, rows: list[list[int]], *, head_dim: int, theta=1e4, eps=1e-5) -> torch.Tensor:
    """The last hidden states [B, T, D] of rows that begin at column 0."""
    longest = max(map(len, rows))
    tokens = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
    x = params["embed/embedding"][tokens]
    causal = torch.ones(longest, longest).tril().bool()
    for layer in range(len(params["layers/q/kernel"])):
        own = {path.removeprefix("layers/"): p[layer] for path, p in params.items() if path.startswith("layers/")}
        y = _norm(x, own["attention_norm/scale"], eps)
        q, k, v = ((y @ own[f"{name}/kernel"]).unflatten(-1, (-1, head_dim)) for name in "qkv")
        q, k = _rotate(q, theta), _rotate(k, theta)
        k, v = (z.repeat_interleave(q.shape[2] // k.shape[2], dim=2) for z in (k, v))
        scores = torch.einsum("bthd,bshd->bhts", q, k) / math.sqrt(head_dim)
        weights = scores.masked_fill(~causal, -math.inf).softmax(-1)
        x = x + torch.einsum("bhts,bshd->bthd", weights, v).flatten(2) @ own["o/kernel"]
        y = _norm(x, own["mlp_norm/scale"], eps)
        x = x + (torch.nn.functional.silu(y @ own["gate/kernel"]) * (y @ own["up/kernel"])) @ own["down/kernel"]
    return _norm(x, params["final_norm/scale"], eps)


def score(params: dict, rows: list[tuple[list[int], list[int]]], *, temperature=1.0, **sizes):
    """(log-probs, entropies) of the completions of (prompt, completion) rows: a list of tensors [n] each."""
    states = hidden(params, [prompt + completion for prompt, completion in rows], **sizes)
    head = params["head/kernel"] if "head/kernel" in params else params["embed/embedding"].T  # tied
    log_probs = (states @ head / temperature).log_softmax(-1)
    entropies = -(log_probs.exp() * log_probs).sum(-1)
    result = [], []
    for row, (prompt, completion) in enumerate(rows):
        places = torch.arange(len(prompt) - 1, len(prompt) + len(completion) - 1)  # the token before predicts
        result[0].append(log_probs[row, places, torch.tensor(completion)])
        result[1].append(entropies[row, places])
    return result


# --- Texts of a CharTokenizer -----------------------------------------------------------------------------------------


def encode(alphabet: str, prompt: str, completion: str, limit: int) -> tuple[list[int], list[int]]:
    """BOS 1, EOS 2, characters from 3 on; a completion over `limit` is cut, and has no EOS then."""
    ids = [3 + alphabet.index(letter) for letter in completion] + [2]
    return [1] + [3 + alphabet.index(letter) for letter in prompt], ids[:limit]


# --- The update -------------------------------------------------------------------------------------------------------


def rate(update: int, *, peak: float, warmup: int, decay: int, final: float) -> float:
    """Learning rate of an update, from 0: a linear warm-up that begins above 0, then a cosine to final * peak."""
    if update < warmup:
        return peak * (update + 1) / warmup
    share = min((update - warmup) / decay, 1.0)
    return peak * (final + (1 - final) * (1 + math.cos(math.pi * share)) / 2)


class AdamW:
    """AdamW after clipping to a global norm, from zero states. step(loss, lr) moves `params` and gives the norm."""

    def __init__(self, params: dict[str, torch.Tensor], *, b1, b2, eps, decay=0.0, max_norm=math.inf):
        self.params, self._means, self._squares, self._count = params, {}, {}, 0
        self._settings = b1, b2, eps, decay, max_norm

    def step(self, loss: torch.Tensor, lr: float, frozen: str = "no such path") -> float:
        b1, b2, eps, decay, max_norm = self._settings
        moving = {path: p for path, p in self.params.items() if not path.startswith(frozen)}
        gradients = torch.autograd.grad(loss, list(moving.values()), allow_unused=True, materialize_grads=True)
        norm = math.sqrt(sum((g**2).sum().item() for g in gradients))
        factor, self._count = min(1.0, max_norm / norm), self._count + 1
        for (path, p), g in zip(moving.items(), gradients, strict=True):
            g = factor * g
            self._means[path] = b1 * self._means.get(path, 0.0) + (1 - b1) * g
            self._squares[path] = b2 * self._squares.get(path, 0.0) + (1 - b2) * g**2
            mean = self._means[path] / (1 - b1**self._count)
            square = self._squares[path] / (1 - b2**self._count)
            moved = p - lr * (mean / (square.sqrt() + eps) + decay * p)
            self.params[path] = moved.detach().requires_grad_()
        return norm


# Terms of any update that a check can leave out.
OF_UPDATES = ("clipping", "weight decay", "epsilon", "one division", "schedule", "learning rate of its own step")


def optimizer_of(params: dict[str, torch.Tensor], settings: dict, without: str = "") -> AdamW:
    """AdamW with its settings, or with one of OF_UPDATES left out."""
    changes = {"clipping": {"max_norm": math.inf}, "weight decay": {"decay": 0.0}, "epsilon": {"eps": 1e-8}}
    return AdamW(params, **(settings | changes.get(without, {})))


def rate_of(update: int, settings: dict, without: str = "") -> float:
    """The learning rate of an update, or with one of OF_UPDATES left out."""
    if without == "schedule":
        return settings["peak"]
    return rate(update + (without == "learning rate of its own step"), **settings)


# --- Comparing --------------------------------------------------------------------------------------------------------


def update_error(start: dict, expected: dict[str, torch.Tensor], found: dict) -> float:
    """|expected - found| / |found - start| over all params, 2-norms: the error of the whole update."""
    start, found = flatten(start), flatten(found)
    assert set(start) == set(found) == set(expected)
    wrong = sum(float(((expected[path].detach().numpy() - x) ** 2).sum()) for path, x in found.items())
    moved = sum(float(((x - start[path]) ** 2).sum()) for path, x in found.items())
    return math.sqrt(wrong / moved)


def metric_errors(expected: list[dict], found: list[dict]) -> dict[str, float]:
    """name -> the largest relative error over the updates, of the metrics that `expected` has."""
    return {
        name: max(abs(e[name] - float(f[name])) / max(abs(e[name]), 1e-2) for e, f in zip(expected, found, strict=True))
        for name in expected[0]
    }
