"""Who says which of two pictures shows a goal better, or is unsure: a CLIP, or a server of a vision-language model.

    --config.labels.server.url=http://HOST:8000 --config.labels.server.model=NAME

The server takes images in /v1/chat/completions (vLLM and others). It is asked the two questions of RL-VLM-F's published
code: to describe both pictures and their difference in terms of the goal, then, given its answer, for 0, 1 or -1.
No key is sent.
"""

import base64
import re
import struct
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np

from rl_jax.control.offline import labelling
from rl_jax.rollout.lm.client import CHAT, Client

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

    def ask(images: np.ndarray) -> np.ndarray:
        def one(pair: np.ndarray) -> int:
            return ask_server(client.post, server.model, fields.goal, *pair)

        with ThreadPoolExecutor(server.concurrency) as pool:
            return np.fromiter(pool.map(one, np.asarray(images)), np.int32, len(images))

    def judge(observations: jax.Array, codes: jax.Array) -> jax.Array:
        images = jnp.round(255.0 * eyes.draw(observations)).astype(jnp.uint8)
        return jax.pure_callback(ask, jax.ShapeDtypeStruct((len(observations),), jnp.int32), images)

    return judge


def ask_server(post: Callable, model: str, goal: str, first: np.ndarray, second: np.ndarray) -> int:
    """0 if the first picture shows the goal better, 1 if the second does, -1 if the model is unsure.

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
    return label_of(_said(post, model, DECIDE.format(questions=questions, answer=answer)))


def _said(post: Callable, model: str, content) -> str:
    """The text of an answer to one message."""
    body = dict(model=model, messages=[dict(role="user", content=content)], temperature=0.0, max_tokens=512, seed=0)
    answer = post(CHAT, body)
    try:
        return answer["choices"][0]["message"]["content"] or ""
    except (KeyError, IndexError, TypeError) as error:
        raise ValueError(f"{CHAT}: expected choices with a message, found {answer!r:.300}") from error


def label_of(text: str) -> int:
    """The label that an answer ends with; -1 if it has no number alone on a line."""
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
