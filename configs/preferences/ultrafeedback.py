"""UltraFeedback (arXiv 2310.01377): a reward model on completions that were rated on four aspects. Your own file.

    L = -log sigma(r(x, y_w) - r(x, y_l)),   y_w: the best mean rating;  y_l: one of the worse ones, drawn by a hash

Each line has an instruction and its completions with ratings from 1 to 5 of instruction_following, truthfulness,
honesty and helpfulness. The paper's UltraRM takes pairs of the fine-grained ratings, as here, or of one overall score,
and mixes in other open data; here it is this file alone. The model is a small one of characters. Arguments: `rankings`
(Plackett-Luce on all completions of an instruction), `worst` (the best against the worst), `pretrained` (a Hugging Face
model, --config.model.path=FOLDER) and `lora` on it, `smoke`. DPO on the same pairs takes the same data in
configs/preferences/given.py: --config.data.name=ultrafeedback.

    python -m experiments.reward_model --config=configs/preferences/ultrafeedback.py --config.data.path=RATED.jsonl
"""

from configs import common
from configs.preferences import reward_models

RESPONSES = 4  # completions per instruction in the paper


def get_config(arg: str | None = None):
    words = common.parse(arg, ("rankings", "worst", "pretrained", "lora", "smoke"))
    config = reward_models.get_config(",".join(["given", *sorted(words & {"smoke", "pretrained", "lora"})]))
    config.name = "_".join(["ultrafeedback", *sorted(words & {"rankings", "worst"})])
    if words >= {"rankings", "worst"}:
        raise ValueError("worst chooses pairs, and rankings have none: leave one of the two out")
    kind = "rankings" if "rankings" in words else "pairs"
    config.data = dict(
        name="ultrafeedback",
        path="RATED.jsonl",  # a JSONL file as openbmb/UltraFeedback has
        kind=kind,
        strategy="best_worst" if "worst" in words else "best_random",
        aspects=("instruction_following", "truthfulness", "honesty", "helpfulness"),
        test_share=0.05,
        skip_bad_records=False,
        data_dir=common.DATA_DIR,
    )
    if not words & {"smoke", "pretrained", "lora"}:
        config.rollout.update(completion_length=512, prompt_buckets=(256,))
    if kind == "rankings":
        config.algorithm.update(responses=RESPONSES, loss=dict(fn="plackett_luce"))
    return config
