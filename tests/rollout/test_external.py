"""rollout/external.py against a loopback server that speaks vLLM's completions protocol with our own tiny model."""

import contextlib
import functools
import http.server
import json
import socket
import threading
import time

import jax
import numpy as np
import pytest

from experiments import grpo
from experiments.parts import policy
from experiments.parts.setup import make_setup, model_config
from rl_jax.core.types import TokenScores
from rl_jax.models.hf import loading
from rl_jax.models.transformer.model import make_transformer
from rl_jax.rollout.lm.engine import make_generate
from rl_jax.rollout.lm.external import OpenAIGenerate, _count, _ids, log_prob_gap
from rl_jax.rollout.lm.requests import Request, cut_at_stops
from rl_jax.rollout.lm.sampling import Sampling
from rl_jax.training.scoring import make_score
from tests.experiments import small
from tests.experiments.shared_programs import share_programs, sharing  # noqa: F401  fixtures
from tests.experiments.small import kept_signals  # noqa: F401  a fixture
from tests.tiny import CONFIG, prompts, random_params

pytestmark = pytest.mark.usefixtures("no_waiting")

TINY = make_transformer(CONFIG)
LENGTHS, WIDTH, LIMIT, GROUP, PAD = [6, 2, 8, 5], 8, 10, 3, 1
ROWS = len(LENGTHS) * GROUP
EOS = tuple(range(5, 64, 8))  # so many that rows end at all lengths
LIMITS = np.arange(ROWS, dtype=np.int32) % LIMIT + 1
KEY = jax.random.key(3)
OPTIONS = dict(completion_length=LIMIT, group_size=GROUP, eos_ids=EOS, pad_id=PAD)


@functools.cache
def rollout_of(sampling=Sampling(), seed=0, limited=False):
    """Our own rows. The server serves them, and its client must put them together again."""
    generate = jax.jit(make_generate(TINY, sampling=sampling, **OPTIONS))
    limits = LIMITS if limited else np.full(ROWS, LIMIT, np.int32)
    return jax.device_get(generate(random_params(seed=seed), *prompts(LENGTHS, WIDTH), KEY, limits))


def choice_of(tokens, log_probs, index, prompt, stopped):
    """A choice as vLLM writes it: CompletionResponseChoice of its protocol.py."""
    named = [f"token_id:{token}" for token in tokens]
    return {
        "index": index,
        "text": "".join(f"<{token}>" for token in tokens),
        "logprobs": {
            "text_offset": list(range(len(tokens))),
            "token_logprobs": log_probs,
            "tokens": named,
            "top_logprobs": [{name: value} for name, value in zip(named, log_probs, strict=True)],
        },
        "finish_reason": "stop" if stopped else "length",
        "stop_reason": tokens[-1] if stopped else None,
        "token_ids": tokens,
        "prompt_logprobs": None,
        "prompt_token_ids": prompt,
    }


def answer_of(body, choices):
    usage = {"prompt_tokens": len(body["prompt"]), "total_tokens": 0, "completion_tokens": 0}
    return {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "m", "choices": choices, "usage": usage}


class Serve:
    """A model's part of the server: body -> answer. Row g of a prompt is the one of seed + g, as in vLLM."""

    def __init__(self, rollout):
        self.rollout, self.first_seeds = rollout, {}
        self.prompts = [np.asarray(row)[mask].tolist() for row, mask in zip(*prompts(LENGTHS, WIDTH), strict=True)]

    def __call__(self, body):
        row = self.prompts.index(body["prompt"])
        start = body["seed"] - self.first_seeds.setdefault(row, body["seed"])
        choices = [self.choice(body, row * GROUP + start + i, i) for i in range(body["n"])]
        return answer_of(body, choices)

    def choice(self, body, row, index):
        kept = min(int(self.rollout.completion_mask[row].sum()), body["max_tokens"])
        tokens = self.rollout.batch.tokens[row, WIDTH:][:kept].tolist()
        log_probs = self.rollout.sampled_log_probs[row, :kept].tolist()
        return choice_of(tokens, log_probs, index, body["prompt"], tokens[-1] in body["stop_token_ids"])


@contextlib.contextmanager
def serving(handle, **others):
    """A server on 127.0.0.1. handle: body -> an answer to send as JSON, or (status, bytes), or (None, bytes) for a
    body whose second half is missing. others: the same for other paths, by name. Yields the server, with its address in
    `url` and what it got in `seen`."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            server.seen.append((self.path, self.headers["Content-Type"], body))
            found = others.get(self.path.strip("/"), handle)(body)
            if body.get("top_k") == 0:  # as SGLang and older versions of vLLM
                found = (400, b"top_k must be -1 (disable) or at least 1, got 0.")
            status, text = found if isinstance(found, tuple) else (200, json.dumps(found).encode())
            self.send_response(status or 200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.send_header("Connection", "close")
            self.end_headers()
            with contextlib.suppress(OSError):  # a client that gave up
                self.wfile.write(text if status else text[: len(text) // 2])

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.seen, server.url = [], f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def engine(url, **options):
    return OpenAIGenerate(url, **dict(vocab_size=64, timeout_s=600.0) | OPTIONS | options)


def run(handle, limits=None, params=None, **options):
    with serving(handle) as server:
        rollout = engine(server.url, **options)(params or {}, *prompts(LENGTHS, WIDTH), KEY, limits)
    return rollout, [body for _, _, body in server.seen]


def assert_same(found, expected):
    for name, x, y in zip(expected._fields, found, expected, strict=True):
        for a, b in zip(jax.tree.leaves(x), jax.tree.leaves(y), strict=True):
            assert a.dtype == b.dtype and isinstance(a, np.ndarray), name
            np.testing.assert_array_equal(a, b, err_msg=name)


@pytest.mark.slow
def test_the_rows_are_those_that_the_server_sampled():
    expected = rollout_of()
    assert 0 < expected.finished.sum() < ROWS and len(set(expected.completion_mask.sum(axis=1))) > 3
    assert_same(run(Serve(expected))[0], expected)


def test_what_is_sent():
    sampling = Sampling(0.7, top_k=20, top_p=0.9, min_p=0.01, repetition_penalty=1.1)
    with serving(Serve(rollout_of())) as server:
        blank = TokenScores(np.zeros(()), None)
        made = engine(server.url + "/v1/", sampling=sampling, model="name", score=lambda *_: blank)
        made({}, *prompts(LENGTHS, WIDTH), KEY)
    assert {(path, kind) for path, kind, _ in server.seen} == {("/v1/completions", "application/json")}
    bodies = [body for _, _, body in server.seen]
    assert len({body.pop("seed") for body in bodies}) == len(LENGTHS)
    assert sorted(body.pop("prompt") for body in bodies) == sorted(Serve(None).prompts)
    constant = dict(
        model="name", n=GROUP, max_tokens=LIMIT, temperature=0.7, top_k=20, top_p=0.9, min_p=0.01,
        repetition_penalty=1.1, presence_penalty=0.0, frequency_penalty=0.0, stop_token_ids=list(EOS), ignore_eos=True,
        logprobs=1, return_token_ids=True, return_tokens_as_token_ids=True, skip_special_tokens=False,
    )  # fmt: skip
    assert bodies == [constant] * len(LENGTHS)
    assert {body["top_k"] for body in run(Serve(rollout_of()))[1]} == {-1}  # the default: all tokens


def test_seeds_come_from_the_key():
    def seeds(key):
        with serving(Serve(rollout_of())) as server:
            engine(server.url)({}, *prompts(LENGTHS, WIDTH), jax.random.key(key))
        return {tuple(body["prompt"]): body["seed"] for _, _, body in server.seen}

    assert seeds(0) == seeds(0) and not set(seeds(0).values()) & set(seeds(1).values())


def test_limits_for_each_row():
    """Groups whose rows have different limits are asked for row by row, with the seeds that the group would have."""
    serve = Serve(rollout_of())
    run(serve)
    found, bodies = run(serve, LIMITS)
    assert_same(found, rollout_of(limited=True))
    assert sorted(body["max_tokens"] for body in bodies) == sorted(LIMITS) and {body["n"] for body in bodies} == {1}
    even = np.repeat([3, 9, 1, 5], GROUP)
    found, bodies = run(serve, even)
    assert sorted(body["max_tokens"] for body in bodies) == [1, 3, 5, 9]
    inside = np.arange(LIMIT)[None] < even[:, None]
    np.testing.assert_array_equal(found.completion_mask, rollout_of().completion_mask & inside)


@pytest.mark.slow
def test_log_probs_agree_with_our_scoring_and_other_weights_do_not():
    score = jax.jit(make_score(TINY, completion_length=LIMIT))
    found, _ = run(Serve(rollout_of()))
    largest, mean = log_prob_gap(found, score(random_params(), found.batch))
    assert 0 < mean < largest < 1e-5
    found, _ = run(Serve(rollout_of(seed=1)))
    largest, mean = log_prob_gap(found, score(random_params(), found.batch))
    assert largest > 1 and largest > mean > 0.1
    none = found._replace(completion_mask=np.zeros_like(found.completion_mask))
    assert log_prob_gap(none, score(random_params(), found.batch)) == (0.0, 0.0)


@pytest.mark.slow
def test_raw_log_probs_of_another_distribution_are_scored():
    sampling = Sampling(0.7, top_k=20)
    score = jax.jit(make_score(TINY, completion_length=LIMIT))
    expected = rollout_of(sampling)
    made = engine("http://127.0.0.1:1", sampling=sampling, score=score)
    assert made._cache_size() == score._cache_size() and engine("http://127.0.0.1:1")._cache_size() == 0
    found, _ = run(Serve(expected), sampling=sampling, score=score, params=random_params())
    np.testing.assert_allclose(found.raw_log_probs, expected.raw_log_probs, atol=1e-5)
    assert np.abs(found.raw_log_probs - found.sampled_log_probs)[found.completion_mask].max() > 0.1
    assert_same(found._replace(raw_log_probs=expected.raw_log_probs), expected)
    with pytest.raises(ValueError, match="raw_log_probs need the argument .score"):
        engine("http://127.0.0.1:1", sampling=sampling)


def test_sync_gets_new_params_before_the_server_is_asked():
    events = []

    def sync(params):
        events.append(params)
        if params is broken:
            raise OSError("disk full")

    def handle(body):
        events.append("asked")
        return serve(body)

    serve, broken, good, other = Serve(rollout_of()), random_params(seed=2), random_params(), random_params(seed=1)
    with serving(handle) as server:
        made = engine(server.url, sync=sync)

        def step(params):
            events.clear()
            made(params, *prompts(LENGTHS, WIDTH), KEY)
            return events

        assert step(good) == [good] + ["asked"] * len(LENGTHS)
        assert step(dict(good)) == ["asked"] * len(LENGTHS), "the same arrays in another dict"
        assert step(other)[0] is other
        *held, name = other
        changed = {key: other[key] for key in held} | {name: good[name]}
        assert step(changed)[0] is changed, "one array is another"
        assert step(other)[0] is other
        for _ in range(2):
            with pytest.raises(OSError, match="disk full"):
                step(broken)
            assert len(events) == 1
        assert step(other)[0] is other, "nobody knows what a failed sync has left there"


def test_samplers_that_share_a_server_know_of_each_other_s_weights():
    """A reference sampler hands over its own params: the policy's sampler must give its own again."""
    given, policy, reference = [], random_params(), random_params(seed=1)
    with serving(Serve(rollout_of())) as server:
        ours, theirs = (engine(server.url, sync=given.append) for _ in range(2))
        for made, params in [(ours, policy), (theirs, reference), (ours, policy), (ours, policy), (theirs, reference)]:
            made(params, *prompts(LENGTHS, WIDTH), KEY)
    assert [params is policy for params in given] == [True, False, True, False]


def change(**fields):
    """Serve, with fields of every answer's last choice replaced; None leaves a field out, as older servers do."""

    def handle(body):
        answer = Serve(rollout_of())(body)
        last = answer["choices"][-1]
        for name, value in fields.items():
            *groups, field = name.split("__")
            group = functools.reduce(lambda x, key: x[key], groups, last)
            value = value(group[field]) if callable(value) else value
            group.pop(field) if value is None else group.update({field: value})
        return answer

    return handle


def choices(edit):
    return lambda body: {**(answer := Serve(rollout_of())(body)), "choices": edit(answer["choices"])}


def last(value):
    return lambda row: [*row[:-1], value]


WRONG = {
    "http": (lambda body: (400, b'{"error": {"message": "too long", "code": 400}}'), "HTTP 400: too long"),
    "http, older": (lambda body: (404, b'{"object": "error", "message": "no model x"}'), "HTTP 404: no model x"),
    "fastapi": (lambda body: (422, b'{"detail": [{"loc": ["body", "n"]}]}'), "HTTP 422: .*'n'"),
    "http, text": (lambda body: (401, b"<p>go away"), "HTTP 401: '<p>go away'"),
    "truncated json": (lambda body: (200, b'{"choices": [{"ind'), "not JSON .*choices"),
    "no object": (lambda body: [1], "no list choices"),
    "no choices": (lambda body: {"error": "x"}, "no list choices"),
    "one choice too few": (choices(lambda c: c[1:]), "has 2 choices, but n=3 were requested"),
    "a choice twice": (choices(lambda c: [c[0], c[1], c[1]]), r"index are \[0, 1, 1\], not 0 to 2"),
    "another prompt": (change(prompt_token_ids=lambda ids: [1, *ids]), r"choices\[2\].prompt_token_ids differ"),
    "no logprobs": (change(logprobs=None), r"choices\[2\].logprobs has no token_logprobs"),
    "no token_logprobs": (change(logprobs__token_logprobs=None), r"choices\[2\].logprobs has no token_logprobs"),
    "no token ids": (change(token_ids=None, logprobs__tokens=lambda t: ["text"] * len(t)), "token_ids is missing"),
    "no ids in text": (change(token_ids=None, logprobs__tokens=last("token_id:")), "token_ids is missing"),
    "no tokens": (change(token_ids=[], logprobs__token_logprobs=[]), r"choices\[2\].token_ids are 0"),
    "lengths": (change(logprobs__token_logprobs=lambda x: x[1:]), "token_ids are .*, and logprobs.token_logprobs"),
    "vocabulary": (change(token_ids=last(64)), r"token_ids\[\d\] is 64, outside the vocabulary of 64"),
    "negative": (change(token_ids=last(-1)), r"token_ids\[\d\] is -1, outside the vocabulary of 64"),
    "float": (change(token_ids=last(7.0)), r"token_ids\[\d\] is 7.0, outside"),
    "null": (change(logprobs__token_logprobs=last(None)), r"token_logprobs\[\d\] is None, which is not a log-prob"),
    "nan": (change(logprobs__token_logprobs=last(float("nan"))), r"token_logprobs\[\d\] is nan"),
    "logits": (change(logprobs__token_logprobs=last(4.5)), r"token_logprobs\[\d\] is 4.5, .* --logprobs-mode"),
    "beyond eos": (change(token_ids=lambda row: [5, *row[1:]]), r"token_ids\[0\] is 5, which ends a row, but"),
    "other stop": (change(token_ids=last(6), finish_reason="stop"), r"finish_reason is 'stop' .*the last 6"),
    "aborted": (change(finish_reason="abort"), r"choices\[2\].finish_reason is 'abort'"),
    "too many": (change(token_ids=[6] * 11, logprobs__token_logprobs=[-1.0] * 11), "11 tokens of max_tokens=10"),
    "server's limit": (
        change(token_ids=[6] * 4, logprobs__token_logprobs=[-1.0] * 4, finish_reason="length"),
        "finish_reason is 'length' after 4 tokens of max_tokens=10",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_answers(case):
    handle, said = WRONG[case]
    with serving(handle) as server, pytest.raises(RuntimeError, match=said) as error:
        # The longest row of all prompts is the last one: every change above is seen.
        engine(server.url)({}, *(x[-1:] for x in prompts(LENGTHS, WIDTH)), KEY)
    assert f"{server.url}/v1/completions" in str(error.value) and len(server.seen) == 1, "not retried"


@pytest.mark.parametrize(("value", "fits"), [(1e-3, True), (1.1e-3, False), (-1e4, True), (-1.1e4, False)])
def test_log_probs_in_low_precision_are_accepted(value, fits):
    with serving(change(logprobs__token_logprobs=last(value))) as server:
        ask = functools.partial(engine(server.url), {}, *(x[-1:] for x in prompts(LENGTHS, WIDTH)), KEY)
        if fits:
            assert np.float32(value) in ask().sampled_log_probs
        else:
            with pytest.raises(RuntimeError, match="which is not a log-prob"):
                ask()


def test_ids_that_are_written_as_tokens():
    assert _ids(["token_id:7", "token_id:12"]) == [7, 12]
    assert (
        _ids(["token_id:7", "seven"]) is None
        and _ids(["token_id:7", "token_id:x"]) is None
        and _ids("token_id:7") is None
    )


def test_a_row_of_an_answer_repeats_its_prompt():
    """So long may an answer be: its limit in bytes grows with both."""
    assert _count(Request(0, np.arange(5), max_tokens=7)) == 12


def test_older_servers_without_token_ids():
    def handle(body):
        answer = serve(body)
        for choice in answer["choices"]:
            del choice["token_ids"], choice["prompt_token_ids"]
            if len(choice["logprobs"]["tokens"]) == LIMIT:
                choice["finish_reason"] = "length"  # even where the last token is an EOS
        answer["choices"].reverse()
        return answer

    serve = Serve(rollout_of())
    assert_same(run(handle)[0], rollout_of())


@pytest.mark.parametrize("failure", [(500, b"{}"), (503, b"busy"), (429, b"{}"), (None, b'{"choices": []}')])
def test_a_passing_failure_is_retried(failure):
    serve, failed = Serve(rollout_of()), set()

    def handle(body):
        if body["seed"] in failed:
            return serve(body)
        failed.add(body["seed"])
        return failure

    found, bodies = run(handle)
    assert_same(found, rollout_of())
    assert len(bodies) == 2 * len(LENGTHS) and sorted(map(str, bodies))[::2] == sorted(map(str, bodies))[1::2]


def test_a_lasting_failure_is_not_retried_for_ever():
    with serving(lambda body: (503, b'{"error": {"message": "engine dead"}}')) as server:
        with pytest.raises(RuntimeError, match=r"HTTP 503: engine dead \(attempt 3\)"):
            # One prompt: of several, the next request may be on its way when the first one gives up.
            engine(server.url, retries=2)({}, *prompts(LENGTHS[:1], WIDTH), KEY)
    assert len(server.seen) == 3


def test_a_connection_that_breaks_off():
    with pytest.raises(ConnectionError, match=r"IncompleteRead.*\(attempt 2\)"):
        run(lambda body: (None, b'{"choices": []}'), retries=1)


def test_nobody_listens():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))  # and does not listen
        url = f"http://127.0.0.1:{sock.getsockname()[1]}"
        with pytest.raises(ConnectionError, match=rf"{url}/v1/completions: .*refused.*\(attempt 4\)"):
            engine(url)({}, *prompts(LENGTHS, WIDTH), KEY)


def test_a_slow_server():
    release = threading.Event()
    with serving(lambda body: (release.wait(600), (500, b""))[1]) as server:
        try:
            with pytest.raises(TimeoutError, match=rf"{server.url}/v1/completions: .*timeout_s=0.2"):
                engine(server.url, timeout_s=0.2)({}, *prompts(LENGTHS, WIDTH), KEY)
            assert len(server.seen) <= len(LENGTHS), "not retried"
        finally:
            release.set()


def test_a_body_that_drips_does_not_extend_the_limit():
    given_up = threading.Event()

    def drip():
        with contextlib.suppress(OSError):
            connection, _ = listener.accept()
            with connection:
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
                for _ in range(900):  # and then it breaks off, which is another error
                    if given_up.wait(0.05):
                        break
                    connection.sendall(b" ")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=drip)
        thread.start()
        with pytest.raises(TimeoutError, match="timeout_s=0.3"):
            engine(f"http://127.0.0.1:{listener.getsockname()[1]}", timeout_s=0.3)(
                {}, *(x[:1] for x in prompts(LENGTHS, WIDTH)), KEY
            )
        given_up.set()
        thread.join()


def test_requests_under_way_at_once_keep_their_order():
    serve, gate = Serve(rollout_of()), threading.Barrier(len(LENGTHS))

    def handle(body):
        gate.wait(600)  # all four are there before one is answered
        time.sleep(0.05 * (len(LENGTHS) - serve.prompts.index(body["prompt"])))  # the last first
        return serve(body)

    assert_same(run(handle)[0], rollout_of())


def test_concurrency_is_a_limit():
    serve, lock, counts = Serve(rollout_of()), threading.Lock(), [0, 0]

    def handle(body):
        with lock:
            counts[0] += 1
            counts[1] = max(counts)
        time.sleep(0.02)
        answer = serve(body)
        with lock:
            counts[0] -= 1
        return answer

    assert_same(run(handle, concurrency=2)[0], rollout_of())
    assert counts[0] == 0 and counts[1] <= 2


def test_a_failure_ends_the_other_requests():
    serve, release, answered = Serve(rollout_of()), threading.Event(), []
    gate = threading.Barrier(len(LENGTHS))

    def handle(body):
        gate.wait(600)  # all are under way
        if body["prompt"] == serve.prompts[1]:
            return 400, b'{"error": {"message": "no"}}'
        answered.append(release.wait(600))
        return serve(body)

    with serving(handle) as server:
        try:
            with pytest.raises(RuntimeError, match="HTTP 400: no"):
                engine(server.url)({}, *prompts(LENGTHS, WIDTH), KEY)
            assert not answered, "the failure waited for the others"
            assert not [t for t in threading.enumerate() if t.name.startswith("ThreadPoolExecutor")]
        finally:
            release.set()


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (dict(url=""), "config.rollout.engine.url"),
        (dict(url="127.0.0.1:8000"), "not of the form http"),
        (dict(url="file:///etc/passwd"), "not of the form http"),
        (dict(url="http://user:secret@127.0.0.1:8000"), "a user name or password"),
        (dict(timeout_s=0.0), "timeout_s=0.0 must be above 0"),
        (dict(retries=-1), "retries=-1"),
        (dict(concurrency=0), "concurrency=0"),
        (dict(group_size=0), "group_size=0"),
        (dict(sampling=Sampling(top_k=65), score=print), "top_k=65"),
    ],
)
def test_bad_arguments(fields, said):
    with pytest.raises(ValueError, match=said):
        engine(**dict(url="http://127.0.0.1:8000") | fields)


@pytest.mark.parametrize(
    ("lengths", "vocab_size", "limits", "said"),
    [
        ([6, 0], 64, None, "row 3: the prompt is empty"),
        ([6, 2], 20, None, "row 0: a prompt token is outside the vocabulary of 20"),
        ([6, 2], 64, np.full(6, 11), "row 0: max_tokens=11 must lie in 1..10"),
        ([6, 2], 64, np.array([1, 1, 1, 1, 0, 1]), "row 4: max_tokens=0 must lie in 1..10"),
    ],
)
def test_bad_requests_are_not_sent(lengths, vocab_size, limits, said):
    eos = [token for token in EOS if token < vocab_size]
    with serving(lambda body: (500, b"")) as server, pytest.raises(ValueError, match=said):
        engine(server.url, vocab_size=vocab_size, eos_ids=eos)({}, *prompts(lengths, WIDTH), KEY, limits)
    assert server.seen == []


def test_an_experiment_without_a_url_or_with_another_engine(tmp_path):
    for engine_fields, said in [(dict(name="openai"), "rollout.engine.url"), (dict(name="vllm"), "none of lockstep")]:
        config = small.config(tmp_path)
        config.rollout.engine.update(engine_fields)
        setup = make_setup(config)
        with pytest.raises(ValueError, match=said):
            policy.build(setup, setup.init_params())


@pytest.mark.slow
@pytest.mark.usefixtures("kept_signals")
@pytest.mark.parametrize("kind", ["a function", "vllm", "sglang"])
def test_grpo_with_a_server(tmp_path, kind):
    """The sampler's log-probs are the trainer's while the server gets the weights; the metrics show when not."""
    scored = small.reward(small.even_length)
    config = small.config(tmp_path, train__steps=3, train__optimizer__learning_rate=1e-2, reward__function=scored)
    setup = make_setup(config)
    options = dict(completion_length=4, group_size=config.sample.group_size, eos_ids=setup.task.tokenizer.eos_ids)
    generate = jax.jit(make_generate(setup.model, **options))
    held, lock = [], threading.Lock()

    def sync(params):
        held.append(jax.device_get(params) if len(held) < 2 else held[-1])

    def load(body):
        asked = dict(method="reload_weights") if kind == "vllm" else dict(model_path=str(folder))
        assert body == asked
        sync(loading.load(folder)[1])
        return dict(results=[None]) if kind == "vllm" else dict(success=True, message="Succeeded")

    folder = tmp_path / "policy"
    loading.save_hf(folder, model_config(setup), setup.init_params())
    paths = dict(collective_rpc=load, reset_prefix_cache=lambda body: (200, b""), update_weights_from_disk=load)

    def handle(body):
        tokens = np.zeros((1, 8), np.int32)
        tokens[0, 8 - len(body["prompt"]) :] = body["prompt"]
        mask = np.arange(8)[None] >= 8 - len(body["prompt"])
        with lock:
            rollout = jax.device_get(generate(held[-1], tokens, mask, jax.random.key(body["seed"])))
        rows = []
        for i in range(body["n"]):
            kept = int(rollout.completion_mask[i].sum())
            found = rollout.batch.tokens[i, 8:][:kept].tolist(), rollout.sampled_log_probs[i, :kept].tolist()
            rows.append(choice_of(*found, i, body["prompt"], bool(rollout.finished[i])))
        return answer_of(body, rows)

    with serving(handle, **paths) as server:
        spec = dict(fn=sync) if kind == "a function" else dict(fn=kind, folder=str(folder))
        config.rollout.engine.update(name="openai", url=f"{server.url}/v1")
        with config.unlocked():
            config.rollout.engine.sync = spec
        grpo.run(config, tmp_path / "run")
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    gaps = [row["sampler/gap_max"] for row in rows if row["step"]]
    assert len(held) == 3 and max(gaps[:2]) < 1e-4 < 1e-2 < gaps[2]
    assert min(row["sampler/ess"] for row in rows[1:3]) > 1 - 1e-6 > 1 - 1e-4 > rows[3]["sampler/ess"]
    recorded = json.loads((tmp_path / "run" / "config.json").read_text())["rollout"]["engine"]["sync"]
    assert recorded == spec if "folder" in spec else recorded["fn"].endswith("sync")
    asked = [path for path, _, _ in server.seen if path != "/v1/completions"]
    requests = {"vllm": ["/collective_rpc", "/reset_prefix_cache"], "sglang": ["/update_weights_from_disk"]}
    assert asked == 3 * requests.get(kind, [])


def stopping(rollout, stop_token, named="stop_reason", **changes):
    """Serve, whose rows end at a token that completes the stop string, as vLLM's do. named: the field with its text."""
    serve = Serve(rollout)

    def handle(body):
        answer = serve(body)
        for choice in answer["choices"]:
            if stop_token in choice["token_ids"]:
                end = choice["token_ids"].index(stop_token) + 1
                choice["token_ids"] = choice["token_ids"][:end]
                choice["logprobs"]["token_logprobs"] = choice["logprobs"]["token_logprobs"][:end]
                del choice["stop_reason"]
                choice |= {"finish_reason": "stop", named: f"<{stop_token}>"} | changes
        return answer

    return handle


def test_stop_strings_are_sent_and_rows_end_there():
    expected = rollout_of()
    tokens = expected.batch.tokens[:, WIDTH:][expected.completion_mask].tolist()
    stop_token = next(token for token in tokens if token not in EOS)
    stop = f"<{stop_token}>"
    cut = cut_at_stops(expected, lambda ids: "".join(f"<{token}>" for token in ids), (stop,), pad_id=PAD)
    assert cut.finished.sum() > expected.finished.sum()
    found, bodies = run(stopping(expected, stop_token), stop_strings=(stop, "never"))
    assert_same(found, cut)
    assert all(body["stop"] == [stop, "never"] and body["include_stop_str_in_output"] for body in bodies)
    found, _ = run(stopping(expected, stop_token, named="matched_stop"), stop_strings=(stop,))  # as SGLang
    assert_same(found, cut)
    for changes in (dict(stop_reason="other"), dict(stop_reason=None), dict(finish_reason="abort")):
        with pytest.raises(RuntimeError, match="finish_reason is"):
            run(stopping(expected, stop_token, **changes), stop_strings=(stop,))
