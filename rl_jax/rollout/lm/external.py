"""Generation by a server: vLLM's completions protocol with the signature of engine.make_generate.

Written against the source of vLLM's main branch (vllm/entrypoints/openai/completion: protocol.py at 002032ee2b18,
serving.py at 030ea52effcb), and tested against a loopback server that implements it, not against a real one. Start it
with

    vllm serve FOLDER --logprobs-mode processed_logprobs

since its default, raw_logprobs, returns log-probs of the model and not of the distribution that was sampled from; the
two differ unless sampling is Sampling(). If top_k, top_p and min_p are used together, a server may apply them in
another order than ours: its log-probs are then those of its own distribution.

tpu-inference is the same server on TPUs, but its sampler (sampling.py at 01d6cc404074) applies temperature, top_k and
top_p only, and ignores the request's seed. sglang-jax is not covered: its completions (serving_completions.py at
0a34ed1f3cce) return tokens as text, without ids.
"""

import weakref
from collections.abc import Callable, Sequence

import chex
import jax
import numpy as np

from rl_jax.core.types import Params, Rollout, TokenScores
from rl_jax.rollout.lm.client import MAX_BODY, Client
from rl_jax.rollout.lm.requests import Completion, Request, as_rollout, requests_of
from rl_jax.rollout.lm.sampling import Sampling, check_counts

TOKEN_ID = "token_id:"  # prefix of the number if tokens are written as ids
ROUNDING = 1e-3  # how far above 0 a log-prob may be in low precision
LOWEST = -1e4  # of a token that was sampled; vLLM itself writes -9999 for -inf
BYTES_PER_TOKEN = 1024  # of an answer, at most: its text, id, log-prob and their names, for each of n rows

# Address of a server -> the leaves that it was given last: all samplers of this process that ask it share its weights.
_HELD: dict[str, tuple[weakref.ref, ...]] = {}


class OpenAIGenerate:
    """generate(params, tokens, prompt_mask, key, max_tokens=None) -> Rollout (numpy) of B x G rows; not to be jitted.

    One request per prompt, or per row if max_tokens differ within a group. A prompt's seed comes from the key; its row
    g is sampled with seed + g, which is how vLLM itself numbers the n samples of a request. The server's random numbers
    are not ours: the same key gives other rows than our own engines.

    sampled_log_probs are those returned by the server: log_prob_gap compares them with our own scoring, and
    experiments.grpo logs the same at every step (sampler/gap_max, sampler/ess).

    The first failure cancels the other requests, which vLLM then aborts.

    Args:
      url: of the server, "http://127.0.0.1:8000". The client connects to nothing else and ignores proxy settings.
      model: the server's name for it; "" is the one that it serves.
      vocab_size: V, of our model.
      completion_length: as in engine.make_generate.
      group_size: as in engine.make_generate.
      sampling: as in engine.make_generate.
      eos_ids: as in engine.make_generate.
      pad_id: as in engine.make_generate.
      timeout_s: seconds per request, from the connection to the last byte, including the time in the server's queue.
      retries: further attempts after a failed connection, HTTP 429 or 5xx.
      concurrency: requests in flight at once.
      stop_strings: texts that end a row, which keeps the token that completes one.
      sync: (params) -> None, called before generation with params that the server does not have yet; it returns once
        the server has them. None: the server keeps its initial weights, and the rows are off-policy from the first
        update on. weight_sync has those for vLLM and SGLang.
      score: scoring.make_score's function for Sampling(), (params, TokenBatch) -> TokenScores, which gives
        raw_log_probs. None if sampling is Sampling(): they are then the sampled ones.

    Raises:
      ValueError: if an argument is invalid.
      ConnectionError: if the server cannot be reached. Names the URL, as do the next two.
      TimeoutError: if the server is too slow.
      RuntimeError: if the answer cannot be used; names the field.
    """

    def __init__(
        self,
        url: str,
        *,
        model: str = "",
        vocab_size: int,
        completion_length: int,
        group_size: int = 1,
        sampling: Sampling = Sampling(),
        eos_ids: tuple[int, ...],
        pad_id: int = 0,
        timeout_s: float = 600.0,
        retries: int = 3,
        concurrency: int = 256,
        stop_strings: tuple[str, ...] = (),
        sync: Callable[[Params], None] | None = None,
        score: Callable | None = None,
    ):
        if not url:
            raise ValueError("url is empty: set config.rollout.engine.url to the server, as in http://127.0.0.1:8000")
        check_counts(completion_length, group_size)
        if sampling.check(vocab_size) != Sampling() and score is None:
            raise ValueError(f"{sampling} changes the model's distribution: raw_log_probs need the argument `score`")
        self._client = Client(url, timeout_s=timeout_s, retries=retries, concurrency=concurrency)
        self._vocab_size, self._completion_length, self._group_size = vocab_size, completion_length, group_size
        self._eos_ids, self._pad_id, self._stop_strings = tuple(eos_ids), pad_id, tuple(stop_strings)
        self._sync, self._score, self._has_synced = sync, score, False
        # Every field whose default a server may take from the folder's generation_config.json.
        self._fields = {"model": model} if model else {}
        self._fields |= {
            **sampling._asdict(),
            "top_k": sampling.top_k or -1,  # off: SGLang and older versions of vLLM refuse 0
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "stop_token_ids": list(self._eos_ids),
            "ignore_eos": True,  # the server's own EOS; ours are among the stop tokens
            "logprobs": 1,
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,  # ids from servers without return_token_ids
            "skip_special_tokens": False,
        }
        if stop_strings:
            self._fields |= {"stop": list(stop_strings), "include_stop_str_in_output": True}

    def __call__(
        self,
        params: Params,
        tokens: chex.Array,
        prompt_mask: chex.Array,
        key: chex.PRNGKey,
        max_tokens: np.ndarray | None = None,
    ) -> Rollout:
        """See the class.

        Args:
          params: passed to sync and score.
          tokens: int32 [B, P], left-padded.
          prompt_mask: bool [B, P].
          key: one typed key.
          max_tokens: int [B x G] of 1 to C, a limit per row; None is C = completion_length for all.
        """
        chex.assert_rank([tokens, prompt_mask], 2)
        limits = self._completion_length if max_tokens is None else np.asarray(max_tokens)
        requests = requests_of(tokens, prompt_mask, group_size=self._group_size, max_tokens=limits)
        self._check(requests)
        seeds = np.asarray(jax.random.bits(key, (len(tokens),), np.uint32)).tolist()
        parts = [part for rows in _split(requests, self._group_size) for part in _of_one_limit(rows)]
        bodies = [self._body(part, seeds[part[0].index // self._group_size]) for part in parts]
        self._hand_over(params)
        completions = []
        caps = [MAX_BODY + BYTES_PER_TOKEN * len(part) * _count(part[0]) for part in parts]
        for part, answer in zip(parts, self._client.post_all(bodies, caps), strict=True):
            try:
                completions += read_answer(
                    answer, part, vocab_size=self._vocab_size, eos_ids=self._eos_ids, stop_strings=self._stop_strings
                )
            except ValueError as error:
                raise RuntimeError(f"{self._client.url}: {error}") from error
        rollout = as_rollout(
            completions, tokens, prompt_mask, completion_length=self._completion_length, pad_id=self._pad_id
        )
        if self._score is None:
            return rollout
        raw = np.asarray(self._score(params, rollout.batch).log_probs)
        return rollout._replace(raw_log_probs=np.where(rollout.completion_mask, raw, np.float32(0)))

    def _check(self, requests: Sequence[Request]) -> None:
        """Raises ValueError for the first request that should not be sent to a server."""
        for request in requests:
            if not len(request.prompt):
                raise ValueError(f"row {request.index}: the prompt is empty")
            if request.prompt.min() < 0 or request.prompt.max() >= self._vocab_size:
                raise ValueError(f"row {request.index}: a prompt token is outside the vocabulary of {self._vocab_size}")
            if not 1 <= request.max_tokens <= self._completion_length:
                raise ValueError(
                    f"row {request.index}: max_tokens={request.max_tokens} must lie in 1..{self._completion_length}"
                )

    def _body(self, part: Sequence[Request], seed: int) -> dict:
        """The request for neighbouring rows of a prompt. seed: that of the prompt's first row."""
        first = part[0]
        return self._fields | {
            "prompt": first.prompt.tolist(),
            "n": len(part),
            "max_tokens": first.max_tokens,
            "seed": seed + first.index % self._group_size,
        }

    def _hand_over(self, params: Params) -> None:
        """Calls sync, unless params are those that the server was given last, by this sampler or by another one.

        The first call always syncs: the server may be a new one at an old address. Params are remembered by weak
        references, so that weights that are otherwise unused are freed.
        """
        if self._sync is None:
            return
        leaves, held = jax.tree.leaves(params), _HELD.get(self._client.address)
        known = self._has_synced and held is not None and len(held) == len(leaves)
        if known and all(ref() is leaf for ref, leaf in zip(held, leaves, strict=True)):
            return
        _HELD.pop(self._client.address, None)  # after a failed sync the server's weights are unknown
        self._sync(params)
        _HELD[self._client.address] = tuple(weakref.ref(leaf) for leaf in leaves)
        self._has_synced = True

    def _cache_size(self) -> int:
        """Number of programs compiled so far (those of score), under the name that jitted functions use."""
        return self._score._cache_size() if hasattr(self._score, "_cache_size") else 0


def log_prob_gap(rollout: Rollout, scores: TokenScores) -> tuple[float, float]:
    """(max, mean) over the sampled tokens of |log p_sampler - log p_ours|.

    A small gap is the server's lower precision. A much larger one means that it has other weights or another log-probs
    mode (see the module).

    Args:
      rollout: sampled_log_probs [B, C] as returned by the sampler.
      scores: of the same rows [B, C], by scoring.make_score with the sampler's Sampling and the params that it should
        have.

    Returns:
      (max, mean). inf if our distribution cuts off a sampled token; 0 if there is no token.
    """
    chex.assert_equal_shape([rollout.sampled_log_probs, scores.log_probs, rollout.completion_mask])
    gaps = np.abs(np.asarray(rollout.sampled_log_probs) - np.asarray(scores.log_probs, np.float32))
    gaps = gaps[np.asarray(rollout.completion_mask)]
    return (float(gaps.max()), float(gaps.mean())) if gaps.size else (0.0, 0.0)


def read_answer(
    answer: dict,
    requests: Sequence[Request],
    *,
    vocab_size: int,
    eos_ids: tuple[int, ...],
    stop_strings: tuple[str, ...] = (),
) -> list[Completion]:
    """The completions of `requests`, n rows of one prompt, from a server's answer to them.

    raw_log_probs are set to the sampled ones.

    Args:
      answer: {"choices": n of {"index", "finish_reason", "stop_reason", "logprobs": {"token_logprobs", "tokens"},
        "token_ids", "prompt_token_ids"}}; one of token_ids and tokens ("token_id:7") is enough. SGLang's stop_reason is
        called matched_stop.
      requests: in the order of their index.
      vocab_size: V, of our model.
      eos_ids: ours.
      stop_strings: those that were sent.

    Raises:
      ValueError: if a field is missing or invalid, naming it.
    """
    choices = answer.get("choices") if isinstance(answer, dict) else None
    if not isinstance(choices, list) or not all(isinstance(choice, dict) for choice in choices):
        raise ValueError("the answer has no list choices")
    if len(choices) != len(requests):
        raise ValueError(f"the answer has {len(choices)} choices, but n={len(requests)} were requested")
    order = [choice.get("index") for choice in choices]
    if any(type(index) is not int for index in order) or sorted(order) != list(range(len(requests))):
        raise ValueError(f"choices[].index are {order}, not 0 to {len(choices) - 1}")
    by_index = dict(zip(order, choices, strict=True))
    ends = (eos_ids, stop_strings)
    return [_completion(by_index[i], request, i, vocab_size, *ends) for i, request in enumerate(requests)]


def _completion(
    choice: dict,
    request: Request,
    index: int,
    vocab_size: int,
    eos_ids: tuple[int, ...],
    stop_strings: tuple[str, ...],
) -> Completion:
    def refuse(field: str, problem: str):
        raise ValueError(f"choices[{index}].{field} {problem}")

    read = choice.get("prompt_token_ids")
    if read is not None and read != request.prompt.tolist():
        refuse("prompt_token_ids", f"differ from the {len(request.prompt)} tokens of the prompt that was sent")
    log_probs = choice.get("logprobs")
    values = log_probs.get("token_logprobs") if isinstance(log_probs, dict) else None
    if not isinstance(values, list):
        refuse("logprobs", "has no token_logprobs: the server returns no log-probs")
    tokens = choice.get("token_ids")
    if tokens is None:
        tokens = _ids(log_probs.get("tokens"))
    if not isinstance(tokens, list):
        refuse("token_ids", f"is missing, and logprobs.tokens are not '{TOKEN_ID}N': the server returns no token ids")
    if not tokens or len(tokens) != len(values):
        refuse("token_ids", f"are {len(tokens)}, and logprobs.token_logprobs {len(values)}")
    for t, (token, value) in enumerate(zip(tokens, values, strict=True)):
        if type(token) is not int or not 0 <= token < vocab_size:
            refuse(f"token_ids[{t}]", f"is {token}, outside the vocabulary of {vocab_size}")
        if type(value) not in (int, float) or not LOWEST <= value <= ROUNDING:  # nan is in no interval
            refuse(f"logprobs.token_logprobs[{t}]", f"is {value}, which is not a log-prob; see --logprobs-mode")
        if token in eos_ids and t < len(tokens) - 1:
            refuse(f"token_ids[{t}]", f"is {token}, which ends a row, but more follow: stop_token_ids are ignored")
    reason = _reason(choice.get("finish_reason"), tokens, request.max_tokens, eos_ids)
    stop_string = choice.get("stop_reason", choice.get("matched_stop"))  # of vLLM, of SGLang
    if reason is None and choice.get("finish_reason") == "stop" and stop_string in stop_strings:
        reason = "stop" if len(tokens) <= request.max_tokens else None
    if reason is None:
        last = f"{len(tokens)} tokens of max_tokens={request.max_tokens}, the last {tokens[-1]}, eos_ids={eos_ids}"
        refuse("finish_reason", f"is {choice.get('finish_reason')!r} after {last}")
    values = np.array(values, np.float32)
    return Completion(request, np.array(tokens, np.int32), values, values, reason)


def _reason(finish_reason: str | None, tokens: list[int], max_tokens: int, eos_ids: tuple[int, ...]) -> str | None:
    """Completion.reason, or None if the row ended in a way that was not asked for.

    That is: at a token that is not one of our EOS, at a limit of the server's own (max_model_len,
    generation_config.json), or because the server aborted it.
    """
    if finish_reason not in ("stop", "length") or len(tokens) > max_tokens:
        return None
    if tokens[-1] in eos_ids:  # older versions of vLLM call it "length" if it is the last token allowed
        return "eos"
    return "length" if finish_reason == "length" and len(tokens) == max_tokens else None


def _ids(tokens) -> list[int] | None:
    """The numbers of "token_id:7", ...; None if tokens are something else."""
    written = isinstance(tokens, list) and all(isinstance(t, str) and t.startswith(TOKEN_ID) for t in tokens)
    numbers = [token.removeprefix(TOKEN_ID) for token in tokens] if written else None
    return [int(number) for number in numbers] if written and all(n.isdecimal() for n in numbers) else None


def _count(request: Request) -> int:
    """Tokens of one row of an answer, with the prompt, which vLLM repeats."""
    return len(request.prompt) + request.max_tokens


def _split(requests: Sequence[Request], size: int) -> list[Sequence[Request]]:
    return [requests[start : start + size] for start in range(0, len(requests), size)]


def _of_one_limit(rows: Sequence[Request]) -> list[Sequence[Request]]:
    """A group as one part if all its rows have the same max_tokens, else row by row: a request has one limit."""
    return [rows] if len({row.max_tokens for row in rows}) == 1 else _split(rows, 1)
