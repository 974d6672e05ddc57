"""WebRL's outcome model: a language model that says whether an episode has done its task. arXiv 2411.02337.

    -log p(YES or NO | instruction, actions, newest page),   the reward [P(YES) > P(NO)]

    python -m experiments.sft --config=configs/agents_papers.py:webrl --workdir=runs/webrl_start
    python -m experiments.tools.outcomes play --run=runs/webrl_start --out=runs/webrl_outcomes
    python -m experiments.sft --config=configs/preferences/outcome_model.py --workdir=runs/webrl_outcome_model
    python -m experiments.tools.outcomes check --model=runs/webrl_outcome_model --data=runs/webrl_outcomes/test.jsonl

Then experiments.ppo with --config=configs/agents_papers.py:webrl,outcome_model. Cross-entropy on the answer, as its
code (LLaMA-Factory's SFT: 4 epochs at 5e-6 on Llama-3.1-8B), on episodes with the environment's word: of training
tasks, and of others on the same pages. Departs: a small model of bytes from scratch (--config.model.path has another,
which brings its tokenizer), and rollouts of one policy, in the paper of several, some 12,000 (--run of the tool may be
given several times). eval/pass@1 is the accuracy on held-out tasks. `smoke`: all folders are runs/smoke_...
"""

from configs import common, task

PLAYED = "webrl_outcomes"  # of runs/


def get_config(arg: str | None = None):
    words = common.parse(arg, ("smoke",))
    smoke = "smoke" in words
    config = task.get_config("scratch")
    config.name = "webrl_outcome_model"
    played = f"runs/{'smoke_' if smoke else ''}{PLAYED}"
    config.task.update(path=f"{played}/train.jsonl", test_path=f"{played}/test.jsonl")
    config.model = common.transformer(
        embed_dim=64, num_layers=3, num_heads=4, num_kv_heads=4, head_dim=16, mlp_dim=256, tied_head=False
    )
    config.rollout.update(completion_length=4, prompt_buckets=(96, 128, 192), long_prompts="cut")  # keeps the page
    config.sft.update(steps=2_000, batch_size=64, eval_every=500)
    config.sft.optimizer = common.optimizer(learning_rate=2e-3, warmup_steps=50, decay_steps=1_950, final_fraction=0.05)
    config.eval.update(num_prompts=256, batch_size=128, top_k=1)  # the likelier word, not a drawn one
    config.checkpoint.every = 500
    if smoke:
        common.smoke(config)
    return config
