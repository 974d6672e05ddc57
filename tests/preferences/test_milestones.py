"""rl_jax.preferences.milestones: key states against a plain loop, labels, and recorded episodes as labelled steps."""

import json
import random
import re

import numpy as np
import pyarrow.parquet
import pytest

from configs import agents_papers
from configs.preferences import vla_rl
from experiments.parts import check_config
from rl_jax import preferences
from rl_jax.data.readers import DataError
from rl_jax.envs.text.gripper import Gripper
from rl_jax.experience import trajectory as t
from rl_jax.preferences import encode_steps, milestones
from rl_jax.tokenizers import CharTokenizer

TOKENIZER = CharTokenizer(Gripper.ALPHABET)


def recorded(count, seed=0, share=1.0, **sensed):
    """Episodes of the world's expert, each action the novice's with probability 1 - share, as a run records them."""
    env, rng, found = Gripper(), random.Random(seed), []
    problems = env.problems(rng)
    for group in range(count):
        prompt, info = next(problems)
        env.reset({"prompt": prompt, "info": json.dumps(info)}, 0)
        spans, turns, done = [t.prompt(TOKENIZER.encode(prompt, bos=True))], [], False
        while not done:
            said = env.expert(rng) if rng.random() < share else env.novice(rng)
            ids, step = TOKENIZER.encode(said, eos=True), env.step(said)
            spans.append(t.sampled(ids, [-1.0] * len(ids)))
            turns.append(t.Turn(step.reward, "", dict(step.numbers) | sensed))
            done = step.done
            if not done:
                spans.append(t.given("observation", TOKENIZER.encode(step.messages[0]["content"])))
        found.append(t.Trajectory(f"p{group}", group, 0, (tuple(spans),), tuple(turns), "done"))
    return found


def write(folder, episodes):
    """A run's folder of recorded episodes."""
    (folder / "trajectories").mkdir(parents=True)
    pyarrow.parquet.write_table(t.to_table(episodes), folder / "trajectories/00000001.parquet")
    return folder


@pytest.mark.parametrize("still", [-1.0, 0.0, 0.5])
@pytest.mark.parametrize("lead", [1, 2, 4])
def test_against_a_plain_loop(still, lead):
    rng = np.random.default_rng(0)
    for count in (0, 1, 7, 30):
        gripper, speed = rng.integers(2, size=count), rng.choice([0.0, 0.4, 1.0], size=count)
        acted = rng.random(count) < 0.8
        keys, before = [], 0
        for g, v, a in zip(gripper, speed, acted, strict=True):
            keys.append(bool(a) and (g != before or v <= still))
            before = g
        labels = [int(any(keys[i : i + lead])) for i in range(count)]
        found = milestones.key_states(gripper, speed, acted, still=still)
        assert found.tolist() == keys and found.dtype == bool
        assert milestones.pseudo_labels(found, lead=lead).tolist() == labels


def test_the_gripper_before_the_first_action_counts():
    known = np.ones(2), np.ones(2), np.ones(2, bool)
    assert milestones.key_states(*known).tolist() == [True, False]
    assert milestones.key_states(*known, start=1.0).tolist() == [False, False]
    with pytest.raises(ValueError, match="must be of one length"):
        milestones.key_states(np.ones(2), np.ones(3), np.ones(2, bool))
    with pytest.raises(ValueError, match="lead=0 must be 1 or more"):
        milestones.pseudo_labels(np.ones(2, bool), lead=0)


def test_a_success_is_steps_that_end_where_the_next_action_begins(tmp_path):
    good, bad = recorded(1)[0], recorded(1)[0]
    lost = bad._replace(turns=tuple(turn._replace(reward=0.0) for turn in bad.turns), prompt_id="p9", group=9)
    found = preferences.load("milestones", path=str(write(tmp_path, [good, lost])), test_share=0.0)
    assert found.kind == "steps" and len(found.data_source("train")) == 1
    (record,) = (found.data_source("train")[0],)
    spans = good.segments[0]
    assert record["prompt"]["ids"] == spans[0].ids.tolist()
    assert sum((step["ids"] for step in record["steps"]), []) == good.ids()[len(spans[0].ids) :].tolist()
    texts = [TOKENIZER.decode(step["ids"]) for step in record["steps"]]
    changes = [place for place, text in enumerate(texts) if text[:3] in ("00c", "00o")]
    assert np.flatnonzero(record["labels"]).tolist() == changes and len(changes) == 2
    (arrays, counts) = encode_steps(TOKENIZER, [record], prompt_buckets=(11,), completion_length=80)
    assert counts["num_steps"] == len(good.turns)
    ends = arrays["step_ends"][0]
    assert (np.diff(ends) == [len(step["ids"]) for step in record["steps"]][1:]).all()
    for number, end in enumerate(ends[:-1]):
        assert TOKENIZER.decode([int(arrays["tokens"][0, 11 + end])]) == "\n", number  # nothing comes after the last
    assert arrays["tokens"][0, 11 + ends[-1]] == TOKENIZER.eos_id


def test_what_cannot_be_labelled_is_refused(tmp_path):
    folder = str(write(tmp_path / "none", recorded(3)))
    with pytest.raises(DataError, match="none of 3 recorded episodes has a reward of 2"):
        milestones.load(path=folder, least=2.0)
    with pytest.raises(ValueError, match="lead=0 1 or more"):
        milestones.load(path=folder, lead=0)
    blind = recorded(1)[0]
    blind = blind._replace(turns=tuple(turn._replace(numbers={}) for turn in blind.turns))
    with pytest.raises(DataError, match="does not count gripper and speed in each turn"):
        milestones.load(path=str(write(tmp_path / "blind", [blind])), test_share=0.0)


@pytest.mark.parametrize("smoke", ["", "smoke_"])
def test_a_run_that_was_not_made_is_refused_with_its_command(tmp_path, smoke):
    folder = tmp_path / f"{smoke}vla_rl_alone"
    word = ",smoke" if smoke else ""
    command = f"experiments.agents --config=configs/agents_papers.py:vla_rl,alone{word} --workdir={folder},"
    with pytest.raises(DataError, match=re.escape(f"record them with python -m {command}")):
        milestones.load(path=str(folder))
    played = agents_papers.get_config(f"vla_rl,alone{word}")
    asks = vla_rl.get_config("smoke" if smoke else None)
    assert played.agent.record and asks.data.path == asks.init_from == f"runs/{folder.name}"


def test_its_config_can_run():
    for arg in (None, "smoke"):
        config = vla_rl.get_config(arg)
        check_config.check(config)
        assert config.program == "reward_model" and config.algorithm.reads == "steps"
