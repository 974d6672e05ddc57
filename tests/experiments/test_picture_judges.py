"""experiments/parts/picture_judges.py: what a server is asked, what its answers mean, and a CLIP in its place."""

import base64
import io
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ml_collections import ConfigDict

from configs.control import offline_images as configs
from experiments.parts import offline_labels, picture_judges
from rl_jax.control.offline import labelling


def fields(**server):
    known = dict(url="", model="", timeout_s=1.0, concurrency=2) | server
    return ConfigDict(dict(goal="be bright", margin=0.5, server=known))


EYES = types.SimpleNamespace(
    texts=lambda texts: np.array([[0.0, 1.0]], np.float32),
    draw=lambda seen: jnp.broadcast_to(seen[..., None, None, :1], (*seen.shape[:-1], 4, 6, 3)),
)


class Server:
    """Answers as a model that compares how bright both images are, and keeps what it was asked."""

    def __init__(self, *_, **options):
        self.options, self.asked = options, []

    def post(self, path, body):
        from PIL import Image

        assert path == "/v1/chat/completions" and body["model"] == "seer"
        (message,) = body["messages"]
        self.asked.append(message["content"])
        if isinstance(message["content"], str):
            said = message["content"].split("SEEN ")[1].split()[0]
            return {"choices": [{"message": {"content": f"The label is clear.\n**{said}**"}}]}
        assert "The goal is be bright." in message["content"][-1]["text"]
        urls = [part["image_url"]["url"] for part in message["content"] if part["type"] == "image_url"]
        data = [base64.b64decode(url.removeprefix("data:image/png;base64,")) for url in urls]
        images = [np.asarray(Image.open(io.BytesIO(one))) for one in data]
        assert images[0].shape == (4, 6, 3)
        gap = images[0].mean() - images[1].mean()
        return {"choices": [{"message": {"content": f"SEEN {-1 if abs(gap) < 20 else int(gap < 0)} 1 line\n0"}}]}


def test_a_server_is_shown_both_pictures_and_asked_twice(monkeypatch):
    servers = []
    monkeypatch.setattr(picture_judges, "Client", lambda *a, **k: servers.append(Server(*a, **k)) or servers[-1])
    judge = picture_judges.make_judge(fields(url="http://here:1", model="seer"), EYES)
    seen = jnp.array([[[1.0], [0.2]], [[0.2], [1.0]], [[0.5], [0.52]]])
    labels = jax.jit(judge)(seen, jnp.zeros((3, 2, 2)))
    assert labels.tolist() == [0, 1, -1] and labels.dtype == jnp.int32
    assert len(servers[0].asked) == 6 and servers[0].options == dict(timeout_s=1.0, concurrency=2)


def test_a_run_that_is_started_again_asks_for_what_it_does_not_know(monkeypatch, tmp_path):
    servers, shown = [], jnp.array([[[1.0], [0.2]], [[0.2], [1.0]], [[1.0], [0.2]]])
    monkeypatch.setattr(picture_judges, "Client", lambda *a, **k: servers.append(Server(*a, **k)) or servers[-1])
    monkeypatch.setattr(picture_judges, "AT_ONCE", 1)
    make = lambda config: picture_judges.make_judge(config.labels, EYES)  # noqa: E731

    def started(seen, **server):
        config = ConfigDict(dict(labels=fields(url="http://here:1", model="seer", concurrency=1, **server)))
        found = picture_judges.keeping(make, config, tmp_path)(config)(seen, None).tolist()
        assert "kept" not in config.labels.server or config.labels.server.kept == server["kept"], "the run's own stays"
        return found, len(servers[-1].asked)

    assert started(shown) == ([0, 1, 0], 4), "each pair once"
    assert started(shown) == ([0, 1, 0], 0)
    assert started(shown[::-1, ::-1]) == ([1, 0, 1], 0), "the same two pairs"
    (file,) = tmp_path.iterdir()
    assert started(shown, kept=str(tmp_path / "other.jsonl"))[1] == 4 and started(shown, kept=str(file))[1] == 0

    def fails(self, path, body):
        if len(self.asked) > 2:
            raise ConnectionError("nobody there")
        return Server.answer(self, path, body)

    seen = jnp.array([[[0.0], [0.4]], [[0.0], [0.6]]])
    with monkeypatch.context() as patch:
        patch.setattr(Server, "answer", Server.post, raising=False)
        patch.setattr(Server, "post", fails)
        with pytest.raises(Exception, match="nobody there"):
            started(seen)
    assert started(seen) == ([1, 1], 2), "what was said before a failure is kept"
    config = ConfigDict(dict(labels=fields()))
    assert picture_judges.keeping(make, config, tmp_path) is make, "without a server"


def test_without_a_server_the_cosines_decide():
    codes = jnp.array([[[0.0, 1.0], [1.0, 0.0]], [[0.8, 0.6], [0.6, 0.8]]])
    assert picture_judges.make_judge(fields(), EYES)(None, codes).tolist() == [0, -1]


def test_a_judge_that_is_unsure_of_every_pair_stops_the_run():
    @jax.jit
    def learned(labels):
        kept, sure = labelling.kept_pairs(jnp.array([[0, 1], [2, 3], [4, 5]], jnp.int32), labels)
        return picture_judges.refuse_unsure(kept, sure)

    assert learned(jnp.array([-1, 1, -1])).tolist() == [[3, 2]] * 3
    mapped = jax.vmap(learned)(jnp.array([[0, -1, -1], [-1, -1, 0]]))
    assert mapped[:, 0].tolist() == [[0, 1], [4, 5]]
    with pytest.raises(jax.errors.JaxRuntimeError, match="unsure of all 3 pairs.*of a CLIP lower labels.margin"):
        jax.block_until_ready(learned(jnp.full(3, -1)))


def test_rewards_are_not_learned_from_pairs_without_a_label(monkeypatch):
    """The CLIP's codes are the same for every state, and the server's answers have no number."""
    eyes = types.SimpleNamespace(**vars(EYES), images=lambda seen: jnp.ones((len(seen), 2)))
    monkeypatch.setattr(offline_labels.image_encoders, "make_encoder", lambda *_: eyes)
    monkeypatch.setattr(picture_judges, "ask_server", lambda *_: "-1")
    steps = types.SimpleNamespace(next_observations=jnp.zeros((9, 1)))
    for server in ({}, dict(url="http://here:1", model="seer")):
        config = configs.get_config("smoke")
        config.labels.server.update(server)
        learn = offline_labels.make_labels(config, None, None)
        with pytest.raises((ValueError, jax.errors.JaxRuntimeError), match="the judge was unsure of all 16 pairs"):
            learn(types.SimpleNamespace(steps=steps, time=jnp.arange(9)), jax.random.key(0))


def test_an_image_is_a_png():
    from PIL import Image

    image = np.random.default_rng(0).integers(0, 256, (5, 3, 3), np.uint8)
    data = base64.b64decode(picture_judges.url(image).partition(",")[2])
    np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(data))), image)


@pytest.mark.parametrize(
    ("text", "label"),
    [("1", 1), ("0.", 0), ("-1", -1), ("It is 1.\n\n**0**", 0), ("0\nno, rather\n1", 1), ("Image 1", -1), ("", -1)],
)
def test_the_label_is_a_number_alone_on_a_line(text, label):
    assert picture_judges.label_of(text) == label


def test_what_is_refused():
    with pytest.raises(ValueError, match="labels.server.url is set: set labels.server.model"):
        picture_judges.make_judge(fields(url="http://here:1"), EYES)
    with pytest.raises(ValueError, match="expected choices with a message, found {'error': 'no'}"):
        picture_judges.ask_server(lambda path, body: {"error": "no"}, "m", "g", *np.zeros((2, 2, 2, 3), np.uint8))
