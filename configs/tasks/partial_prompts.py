"""A test of contamination: can a model go on with the questions of a benchmark? arXiv 2507.10532.

    python -m experiments.evaluate --config=configs/tasks/partial_prompts.py --config.model.path=FOLDER \\
        --config.task.path=QUESTIONS.jsonl --config.task.column=question --workdir=runs/partial_prompts

The first 60 % of each question are given (the paper also: --config.task.share=.4 and .8) and the greedy continuation is
compared with the rest, word by word: eval/reward is the share of exact matches, and eval/rest/shared how far they go
on average. All questions of a file are asked; how many were too long for that is printed (task.max_prompt_bytes,
task.max_completion_bytes and the lengths in config.rollout). A model that has not seen the questions stays near 0; the
paper reports 54.6 % on MATH-500 for Qwen2.5-Math-7B and 3.8 % for Llama3.1-8B. Without a path the texts are generated.
Arguments: `real` takes the questions of GSM8K's test set (`python -m experiments.tools.fetch_data math`). `smoke`:
seconds.
"""

from configs import common
from configs.tasks import gsm8k, mr_rlvr


def get_config(arg: str | None = None):
    words = common.parse(arg, ("real", "smoke"))
    config = gsm8k.get_config()
    config.name = "partial_prompts"
    limits = dict(max_prompt_bytes=1023, max_completion_bytes=511)  # those of a file's questions
    config.task = mr_rlvr.task("rest", column="question", only_test=True, **limits)
    config.rollout.update(completion_length=512, prompt_buckets=(112, 256, 512, 1024))
    config.reward.terms = dict(rest=dict(fn="order.next_segment", weight=1.0, mode="exact"))
    config.eval.update(num_prompts=10_000, top_k=1)  # all questions; greedy
    if "real" in words:
        config.task.path = common.real("math/gsm8k_test.jsonl.gz")
    if "smoke" in words:
        config.rollout.completion_length = 64  # the generated texts are short
    return common.smoke(config) if "smoke" in words else config
