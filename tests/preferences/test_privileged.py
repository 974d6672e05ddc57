"""preferences/privileged.py (Fact-RLHF): the judge reads the fact, the policy does not."""

import json

import pytest

from configs.preferences import facts
from experiments.parts import check_config
from experiments.parts.judges.base import judge_prompts
from rl_jax import preferences, tasks
from rl_jax.preferences import privileged


def test_the_pairs_begin_with_the_result(tmp_path):
    options = dict(num_prompts=20, data_dir=str(tmp_path))
    source = preferences.load("privileged", **options).data_source("train")
    blind = preferences.load("privileged", template="{prompt}", **options).data_source("train")
    for i in range(len(source)):
        fact, question = source[i]["prompt"].split("\n")
        assert fact == f"Fact: {source[i]['info']['answer']}" and question == blind[i]["prompt"]
        assert source[i]["responses"] == blind[i]["responses"] and source[i]["responses"][0].endswith(fact[6:])
    for bad, said in (
        ("{prompt} {caption}", "the record has answer, grades, prompt"),
        ("{answer}", "must have .prompt."),
    ):
        with pytest.raises(ValueError, match=said):
            preferences.load("privileged", template=bad, **options)


def test_only_the_judge_sees_the_fact(tmp_path):
    of = dict(name="arithmetic", num_train=20, num_test=5, data_dir=str(tmp_path))
    task, plain = tasks.load("rl_jax.preferences.privileged:load_task", of=of), tasks.load(**of)
    for split in ("sft_train", "train", "test"):
        source, own = task.data_source(split), plain.data_source(split)
        record, bare = source[0], own[0]
        answer = json.loads(bare["info"])["answer"]
        assert record["prompt"] == bare["prompt"] and record["completion"] == bare["completion"]
        assert judge_prompts([record]) == [f"Fact: {answer}\n{bare['prompt']}"] and len(source) == len(own)
        assert task.reward_fn(record["prompt"], record["completion"], json.loads(record["info"]))["reward"] == 1.0
    # What the reward model was trained on is what it reads as a judge.
    assert judge_prompts([record]) == [privileged.augmented(bare["prompt"], {"answer": answer})]


@pytest.mark.parametrize("arg", [None, "model", "blind", "blind,model,smoke"])
def test_its_config_can_run(arg):
    config = facts.get_config(arg)
    check_config.check(config)
    if config.program == "ppo":
        assert config.judge.facts.path == "runs/facts_blind_model" if arg else "runs/facts_model"
    with pytest.raises(ValueError, match="choose one stage, not 2"):
        facts.get_config("model,ppo")
