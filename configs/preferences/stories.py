"""DPO (arXiv 2305.18290) on real preferences, from the real stories260K.

    python -m experiments.dpo --config=configs/preferences/stories.py --workdir=runs/stories_preferences

HH's harmless pairs; the words after the colon choose other data: `pandalm` (annotators who disagree), `persona` (" Yes"
against " No": one token decides), `solutions` (GSM8K's model solutions, right and wrong: rankings). `smoke`: seconds.
"""

from configs import common
from configs.preferences import given

DATA = "../shared/data"
SETS = {
    "hh": dict(name="hh", path=f"{DATA}/prefs/hh_harmless_test.jsonl.gz"),
    "pandalm": dict(name="pandalm", path=f"{DATA}/prefs/pandalm_human_testset.json.gz"),
    "persona": dict(name="persona", path=f"{DATA}/prefs"),
    "solutions": dict(name="gsm8k_solutions", path=f"{DATA}/math/gsm8k_test_model_solutions.jsonl.gz", kind="rankings"),
}


def get_config(arg: str | None = None):
    words = common.parse(arg, (*SETS, "smoke"))
    named = sorted(words & set(SETS)) or ["hh"]
    if len(named) > 1:
        raise ValueError(f"config argument names {len(named)} data sets: {', '.join(named)}")
    config = given.base("stories_preferences")
    config.data = dict(SETS[named[0]], skip_bad_records=True, data_dir=common.DATA_DIR)
    config.encode = dict(truncate="left", identical="drop")
    config.task.tokenizer_path = f"{DATA}/models/tok512.bin"
    config.model = common.transformer(checkpoint=f"{DATA}/models/stories260K.bin")
    # Of the others most prompts are cut to their ends; a statement of the personas stays whole.
    completion, prompt = (2, 160) if named == ["persona"] else (64, 128)
    config.rollout.update(completion_length=completion, prompt_buckets=(prompt,))
    config.score.chunk = 16
    config.train.optimizer = common.optimizer(learning_rate=3e-4, warmup_steps=10, decay_steps=90, final_fraction=0.1)
    return given.smoke(config) if "smoke" in words else config
