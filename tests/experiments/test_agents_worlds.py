"""configs/agents_worlds.py: each world fits its row, each credit finds its arrays, and one of them runs."""

import itertools
import random
import shutil
import threading

import pytest

from configs import agents_rows, agents_worlds
from experiments import agents
from experiments.parts import plan_memory, players, policy
from rl_jax.envs.text.maze import Maze
from rl_jax.envs.text.recorded import play
from rl_jax.runs.logging import read_jsonl
from tests.experiments.shared_programs import share_programs, sharing  # noqa: F401  fixtures
from tests.experiments.small import kept_signals, no_evaluations  # noqa: F401  fixtures


@pytest.mark.parametrize("world", agents_worlds.WORLDS)
def test_episodes_fit_their_row(world):
    """Prompts fit the bucket with their first token, and nine of ten episodes of a mediocre player the row."""
    config = agents_worlds.get_config(f"{world},smoke")
    players.check(config)
    policy.check_choices(config)
    env, rng, fits = players.environment_of(config)(), random.Random(0), []
    for prompt, info in itertools.islice(env.problems(rng), 40):
        assert len(prompt) + 1 <= max(config.rollout.prompt_buckets)
        turns = play(env, prompt, info, rng, config.task.expert_share)
        ends = (len(turns) + 1) // 2  # an EOS each
        fits.append(sum(map(len, turns)) + ends <= config.rollout.completion_length)
    assert sum(fits) >= 36


@pytest.mark.parametrize("credit", agents_worlds.CREDIT)
def test_credit_finds_what_it_asks_for(credit):
    others = {"semi_online": "guided", "aspo": "search", "igpo_policy": "search", "igpo_logs": "search"}
    others["zero_sum"] = "judged"
    world = others.get(credit, "maze")
    config = agents_worlds.get_config(f"{world},{credit},smoke")
    policy.check_choices(config)
    players.check(config)
    asked = policy.turn_counts(config)
    env = players.environment_of(config)()
    assert plan_memory.asked(config) == set(), "and a Player, which asks this, can be made"
    assert set(asked) <= {"correct", "malformed", *env.NUMBERS}


def test_credit_that_a_world_does_not_count_is_refused():
    with pytest.raises(ValueError, match="asks for turn_calls: agent.env=.*maze:Maze' counts correct, .*walls"):
        players.check(agents_worlds.get_config("maze,aspo,smoke"))


@pytest.mark.parametrize("credit", ["tree_grpo", "vine"])
def test_worlds_that_cannot_be_copied_are_refused_before_work(credit):
    """All of ours can, within an episode too; a lock, as a connection has, cannot."""
    for world in agents_worlds.WORLDS:
        players.check(agents_worlds.get_config(f"{world},{credit},smoke"))
    for name in ("Locked", "LockedInAnEpisode"):
        config = agents_worlds.get_config(f"maze,{credit},smoke")
        config.agent.env = dict(fn=f"tests.experiments.test_agents_worlds:{name}")
        with pytest.raises(ValueError, match=f"agent.env='.*:{name}': the environment {name} cannot be copied"):
            players.check(config)
        config.agent.update(state_rollouts=0, branching=dict(fn=""))
        config.algorithm.advantage = agents_worlds.CREDIT["trajectory"]
        players.check(config)


class Locked:
    """Not of the generated worlds."""

    def __init__(self):
        self.lock = threading.Lock()


class LockedInAnEpisode(Maze):
    """Cannot be copied once an episode has begun."""

    def begin(self, info, dice):
        super().begin(info, dice)
        self.lock = threading.Lock()


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("trees:arpo", "--config.agent.branching.fn=at_random"),
        ("trees:branch_return_loo", "--config.agent.branching.fn=at_random"),
        ("critics:vine", "--config.agent.state_rollouts=2 does"),
        ("critics:archer", "your own loop can pass it"),
    ],
)
def test_credit_that_nothing_supplies_is_refused_before_work(path, says):
    config = agents_worlds.get_config("maze,smoke")
    config.algorithm.advantage = dict(fn=f"rl_jax.advantages.turn_{path}")
    with pytest.raises(ValueError, match=f"algorithm.advantage='.*{path}' needs .*{says}"):
        policy.check_choices(config)


def test_the_probability_of_a_right_answer_needs_one():
    with pytest.raises(ValueError, match="igpo_policy' asks for the probability of .*maze:Maze' has no right_answer"):
        players.check(agents_worlds.get_config("maze,igpo_policy,smoke"))


@pytest.mark.parametrize("world", ["kuhn", "bargain"])
@pytest.mark.parametrize("partner", ["self_play", "older"])
def test_the_other_side_may_be_the_model(world, partner):
    config = agents_worlds.get_config(f"{world},{partner},smoke")
    players.check(config)
    assert config.agent.partner == agents_worlds.PARTNERS[partner]
    with pytest.raises(ValueError, match="agent.partner='(self|reference)': agent.env=.*maze:Maze' has one side only"):
        players.check(agents_worlds.get_config(f"maze,{partner},smoke"))
    with pytest.raises(ValueError, match="its dialogue is not copied: no branching"):
        players.check(agents_worlds.get_config(f"{world},{partner},tree_grpo,smoke"))


@pytest.mark.slow
@pytest.mark.usefixtures("kept_signals")
def test_a_hand_of_poker_against_an_older_version(tmp_path):
    """The partner is the reference, two engines compile once, and a run that was cut off ends as a whole one."""
    config = agents_worlds.get_config("kuhn,older,smoke")
    config.task.update(data_dir=str(tmp_path / "data"), num_train=20, num_test=4)
    config.model.update(embed_dim=16, num_layers=1, num_heads=2, num_kv_heads=2, head_dim=8, mlp_dim=32)
    config.sft.update(steps=2, batch_size=8)
    config.train.steps = 3
    config.algorithm.reference_schedule.every = 2
    config.sample.update(prompts_per_step=2, group_size=2)
    config.eval.update(every=3, num_prompts=4, batch_size=4)
    config.checkpoint.every = 2
    config.log.update(progress=False, tensorboard=False)
    agents.run(config.lock(), tmp_path / "run")
    rows = read_jsonl(tmp_path / "run/metrics.jsonl")
    assert rows[-1]["step"] == 3 and rows[-1]["episode/end/error"] == 0
    counts = [row["compile_count"] for row in read_jsonl(tmp_path / "run/timing.jsonl") if "compile_count" in row]
    assert len(set(counts)) == 1
    shutil.copytree(tmp_path / "run", tmp_path / "again")
    shutil.rmtree(tmp_path / "again/checkpoints/3")
    (tmp_path / "again/final.json").unlink()
    agents.run(config, tmp_path / "again")
    for name in ("final.json", "metrics.jsonl", "samples.jsonl"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "run" / name).read_bytes()


def test_a_world_without_a_published_list():
    with pytest.raises(ValueError, match="maze has no published list; these have: wordle, city"):
        agents_worlds.get_config("maze,real")


@pytest.mark.slow
@pytest.mark.usefixtures("kept_signals", "no_evaluations")
def test_a_run_with_credit_from_the_environments_counts(tmp_path):
    config = agents_worlds.get_config("guided,semi_online,smoke")
    config.task.update(data_dir=str(tmp_path / "data"), num_train=20, num_test=4)
    config.model.update(embed_dim=16, num_layers=1, num_heads=2, num_kv_heads=2, head_dim=8, mlp_dim=32)
    config.sft.update(steps=30, batch_size=8)
    config.train.steps, config.checkpoint.every = 2, 100
    config.algorithm.surrogate = dict(fn="rl_jax.losses.policy.turns:turn_clip")
    config.sample.update(prompts_per_step=2, group_size=2)
    config.eval.update(every=2, num_prompts=4, batch_size=4)
    config.log.update(progress=False, tensorboard=False)
    agents.run(config.lock(), tmp_path / "run")
    rows = read_jsonl(tmp_path / "run/metrics.jsonl")
    assert any("episode/patched" in row and row["episode/patched"] > 0 for row in rows)
    assert any(abs(row.get("loss", 0)) > 0 for row in rows), rows[-1]


@pytest.mark.slow
@pytest.mark.usefixtures("kept_signals")
def test_rounds_that_begin_anew_are_trained_on(tmp_path):
    """IterResearch: a segment per round, GSPO's clip and whole rounds; nothing compiles after the first step."""
    config = agents_rows.get_config("iterresearch,smoke")
    config.task.update(data_dir=str(tmp_path / "data"), num_train=20, num_test=4)
    config.model.update(embed_dim=16, num_layers=1, num_heads=2, num_kv_heads=2, head_dim=8, mlp_dim=32)
    config.sft.steps = 0  # a policy that knows nothing begins anew, too
    config.rollout.completion_length, config.agent.max_turns = 128, 3
    config.train.steps, config.checkpoint.every = 2, 100
    config.sample.update(prompts_per_step=2, group_size=2)
    config.eval.update(every=2, num_prompts=4, batch_size=4)
    config.log.update(progress=False, tensorboard=False)
    agents.run(config.lock(), tmp_path / "run")
    rows = read_jsonl(tmp_path / "run/metrics.jsonl")
    assert rows[-1]["step"] == 2 and 1 < rows[-1]["eval/episode/segments"] <= rows[-1]["eval/episode/turns"]
    assert rows[-1]["episode/end/error"] == 0 and rows[-1]["grad_norm"] >= 0
    counts = [row["compile_count"] for row in read_jsonl(tmp_path / "run/timing.jsonl") if "compile_count" in row]
    assert len(set(counts)) == 1
