"""DPO (arXiv 2305.18290) on stories and on real preferences.

    python -m experiments.dpo --config=configs/preferences/stories.py --workdir=runs/stories_preferences

Pairs of generated stories, the happier one chosen. Arguments choose other data. Generated: `moods` (the
default), `sums` (right and wrong), `rankings` (of sums), `users` (two with opposite tastes). Real: `hh` (HH's harmless
pairs), `pandalm` (annotators who disagree), `persona` (" Yes" against " No": one token decides), `solutions` (GSM8K's
model solutions, right and wrong: rankings); their files are those of `python -m experiments.tools.fetch_data NAME`.
The model for generated data is a small one of characters, fine-tuned on the better responses first; for real data it is
the real stories260K. `smoke`: seconds.
"""

from configs import common
from configs.preferences import given

GENERATED = {
    "moods": dict(name="generated", world="moods", kind="pairs"),
    "sums": dict(name="generated", world="sums", kind="pairs"),
    "rankings": dict(name="generated", world="sums", kind="rankings"),
    "users": dict(name="generated", world="order", kind="pairs"),
}
REAL = {
    "hh": dict(name="hh", path="prefs/hh_harmless_test.jsonl.gz"),
    "pandalm": dict(name="pandalm", path="prefs/pandalm_human_testset.json.gz"),
    "persona": dict(name="persona", path="prefs"),
    "solutions": dict(name="gsm8k_solutions", path="math/gsm8k_test_model_solutions.jsonl.gz", kind="rankings"),
}
SETS = (*GENERATED, *REAL)


def get_config(arg: str | None = None):
    words = common.parse(arg, (*SETS, "smoke"))
    named = sorted(words & set(SETS)) or ["moods"]
    if len(named) > 1:
        raise ValueError(f"choose one data set, not {len(named)}: {', '.join(named)}")
    config = given.base("stories_preferences")
    config.score.chunk = 16
    config.train.optimizer = common.optimizer(learning_rate=3e-4, warmup_steps=10, decay_steps=90, final_fraction=0.1)
    (_generated if named[0] in GENERATED else _real)(config, named[0])
    return given.smoke(config) if "smoke" in words else config


def _generated(config, name: str) -> None:
    config.data = dict(GENERATED[name], data_dir=common.DATA_DIR)
    config.model = common.transformer(embed_dim=64, num_layers=3, num_kv_heads=4, head_dim=16, mlp_dim=192)
    completion, prompt = (64, 48) if name == "moods" else (24, 24)
    config.rollout.update(completion_length=completion, prompt_buckets=(prompt,))
    config.sft.update(steps=200, batch_size=32)


def _real(config, name: str) -> None:
    fields = REAL[name] | {"path": common.real(REAL[name]["path"])}
    config.data = dict(fields, skip_bad_records=True, data_dir=common.DATA_DIR)
    config.encode = dict(truncate="left", identical="drop")
    config.task.tokenizer_path = common.real("models/tok512.bin")
    config.model = common.transformer(checkpoint=common.real("models/stories260K.bin"))
    # In the other data sets most prompts are cut to their ends; persona statements stay whole.
    completion, prompt = (2, 160) if name == "persona" else (64, 128)
    config.rollout.update(completion_length=completion, prompt_buckets=(prompt,))
