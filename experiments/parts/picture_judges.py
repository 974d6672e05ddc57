"""Who says which of two pictures shows a goal better, or is unsure: a CLIP, or a server of a vision-language model.

    --config.labels.server.url=http://HOST:8000 --config.labels.server.model=NAME

The server takes images in /v1/chat/completions (vLLM and others). It is asked the two questions of RL-VLM-F's published
code: to describe both pictures and their difference in terms of the goal, then, given its answer, for 0, 1 or -1.
No key is sent. Two pictures are asked about once, also by a run that is started again: last answers are kept in a file
(text_models.Cached), labels.server.kept or one in the run's folder.
"""

import base64
import functools
import hashlib
import json
import pathlib
import re
import struct
import threading
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np

from experiments.parts.text_models import Cached
from rl_jax.control.offline import labelling
from rl_jax.rollout.lm.client import CHAT, Client

AT_ONCE = 32  # pairs of pictures whose answers are kept together
DESCRIBE = """1. What is shown in Image 1?
2. What is shown in Image 2?
3. The goal is {goal}. Is there any difference between Image 1 and Image 2 in terms of achieving the goal?"""
DECIDE = """Based on the text below to the questions:
{questions}
{answer}

Is the goal better achieved in Image 1 or Image 2?
Reply a single line of 0 if the goal is better achieved in Image 1, or 1 if it is better achieved in Image 2.
Reply -1 if the text is unsure or there is no difference."""


def make_judge(fields, eyes) -> Callable:
    """The judge of config.labels: (observations [M, 2, D], codes [M, 2, E]) -> int32 [M], 0, 1 or -1.

    Args:
      fields: config.labels.
      eyes: image_encoders.ImageEncoder.

    Raises:
      ValueError: if a server is named without its model.
    """
    goal, server = eyes.texts((fields.goal,))[0], fields.server
    if not server.url:
        return lambda observations, codes: labelling.judged(codes @ goal, margin=fields.margin)
    if not server.model:
        raise ValueError("labels.server.url is set: set labels.server.model, the name that the server knows it by")
    client = Client(server.url, timeout_s=server.timeout_s, concurrency=server.concurrency)
    ask = _asking(client.post, fields)

    def judge(observations: jax.Array, codes: jax.Array) -> jax.Array:
        images = jnp.round(255.0 * eyes.draw(observations)).astype(jnp.uint8)
        return jax.pure_callback(ask, jax.ShapeDtypeStruct((len(observations),), jnp.int32), images)

    return judge


def keeping(make_run: Callable, config, folder: pathlib.Path) -> Callable:
    """make_run of a program (control_runs.make_run), with a file for a server's answers if the config names none.

    Args:
      make_run: (config, keywords) -> a run.
      config: of the program.
      folder: the run's, where the file is; each process has its own.
    """
    server = config.labels.get("server") if "labels" in config else None
    if not server or not server.url or server.get("kept"):
        return make_run

    @functools.wraps(make_run)
    def made(config, **keywords):
        own = config.copy_and_resolve_references()
        with own.unlocked():
            own.labels.server.kept = str(folder / f"pictures_said_{jax.process_index()}.jsonl")
        return make_run(own, **keywords)

    return made


def _asking(post: Callable, fields) -> Callable:
    """(images uint8 [M, 2, H, W, 3]) -> int32 [M], by a server. Arguments: of Client; config.labels."""
    server, pairs, lock = fields.server, {}, threading.Lock()
    at_once = max(AT_ONCE, server.concurrency)

    def answers(names: Sequence[str]) -> list[str]:
        with ThreadPoolExecutor(server.concurrency) as pool:
            return list(pool.map(lambda name: ask_server(post, server.model, fields.goal, *pairs[name]), names))

    by = json.dumps(dict(model=server.model, goal=fields.goal, questions=(DESCRIBE, DECIDE)))
    cached = Cached(answers, server.get("kept", ""), by)

    def ask(images: np.ndarray) -> np.ndarray:
        images, labels = np.asarray(images), []
        names = [f"{pair.shape[1:]} {hashlib.sha256(pair.tobytes()).hexdigest()}" for pair in images]
        with lock:  # several devices of a process may ask
            pairs.update(zip(names, images, strict=True))
            for start in range(0, len(names), at_once):
                labels += map(label_of, cached(names[start : start + at_once]))
            pairs.clear()
        return np.asarray(labels, np.int32)

    return ask


def refuse_unsure(pairs: jax.Array, sure: jax.Array) -> jax.Array:
    """The pairs, if the judge is sure of one: else they would teach a reward that nobody has said anything about.

    Args:
      pairs: int32 [M, 2], of labelling.kept_pairs.
      sure: float32 [], the share of them that have a label.

    Raises:
      ValueError: if it is 0; on the host, while the program runs.
    """

    def check(pairs: np.ndarray, sure: np.ndarray) -> np.ndarray:
        if not np.asarray(sure) > 0.0:
            raise ValueError(
                f"the judge was unsure of all {len(pairs)} pairs, so that there is nothing to learn from: of a CLIP "
                "lower labels.margin; a server has to reply 0 or 1 on a line of its own"
            )
        return np.asarray(pairs)

    shape = jax.ShapeDtypeStruct(pairs.shape, pairs.dtype)
    return jax.pure_callback(check, shape, pairs, sure, vmap_method="sequential")


def ask_server(post: Callable, model: str, goal: str, first: np.ndarray, second: np.ndarray) -> str:
    """The model's last answer, whose label (`label_of`) says which picture shows the goal better.

    Source: arXiv 2411.05273; the prompts are those of the published RL-VLM-F, the images are sent before them.

    Args:
      post: (path, body) -> the parsed answer.
      model: the server's name of it.
      goal: a text.
      first: uint8 [H, W, 3].
      second: uint8 [H, W, 3].
    """
    questions = DESCRIBE.format(goal=goal)
    content = []
    for number, image in ((1, first), (2, second)):
        content.append({"type": "text", "text": f"Image {number}:"})
        content.append({"type": "image_url", "image_url": {"url": url(image)}})
    answer = _said(post, model, [*content, {"type": "text", "text": questions}])
    return _said(post, model, DECIDE.format(questions=questions, answer=answer))


def _said(post: Callable, model: str, content) -> str:
    """The text of an answer to one message."""
    body = dict(model=model, messages=[dict(role="user", content=content)], temperature=0.0, max_tokens=512, seed=0)
    answer = post(CHAT, body)
    try:
        return answer["choices"][0]["message"]["content"] or ""
    except (KeyError, IndexError, TypeError) as error:
        raise ValueError(f"{CHAT}: expected choices with a message, found {answer!r:.300}") from error


def label_of(text: str) -> int:
    """The label that an answer ends with: 0, the first picture is better, 1, the second, -1, unsure or no label."""
    found = [line for line in text.split("\n") if re.fullmatch(r"\W*(-1|0|1)\W*", line)]
    return int(re.search(r"-1|0|1", found[-1])[0]) if found else -1


def url(image: np.ndarray) -> str:
    """An image uint8 [H, W, 3] as a data URL of a PNG."""
    height, width, _ = image.shape
    rows = b"".join(b"\0" + row.tobytes() for row in np.ascontiguousarray(image))  # each without a filter

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return "data:image/png;base64," + base64.b64encode(png).decode()
