"""TRL's DPOTrainer and SFTTrainer on the work of experiments.bench.updates: PYTHON trl_updates.py WORK.json -> JSON.

PYTHON has `trl==1.16.0`, `torch==2.13.0`, transformers, accelerate, datasets. The model is transformers' Qwen3,
randomly initialised, float32. Its collators pad to the longest row of a batch.
"""

import json
import os
import sys
import tempfile
import time
import warnings

os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", TRANSFORMERS_VERBOSITY="error")
warnings.filterwarnings("ignore")

import torch  # noqa: E402
from datasets import Dataset  # noqa: E402
from tokenizers import Tokenizer, models, pre_tokenizers  # noqa: E402
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM, TrainerCallback  # noqa: E402
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer  # noqa: E402

work = json.load(open(sys.argv[1]))
sizes, vocab = work["sizes"], work["sizes"]["vocab"]
torch.manual_seed(0)
words = Tokenizer(models.WordLevel({f"t{i}": i for i in range(vocab - 2)} | {"<pad>": vocab - 2, "<eos>": vocab - 1},
                                   unk_token="t0"))  # fmt: skip
words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>")
model = Qwen3ForCausalLM(
    Qwen3Config(
        vocab_size=vocab, hidden_size=sizes["d"], intermediate_size=sizes["ff"], num_hidden_layers=sizes["layers"],
        num_attention_heads=sizes["heads"], num_key_value_heads=sizes["kv"], head_dim=sizes["head_dim"],
        tie_word_embeddings=True, max_position_embeddings=4096, pad_token_id=vocab - 2, eos_token_id=vocab - 1,
        bos_token_id=None, attn_implementation="sdpa",
    )
).float()  # fmt: skip
folder = tempfile.mkdtemp()
tokenizer.save_pretrained(folder)
model.save_pretrained(folder)
model.config._name_or_path = model.name_or_path = folder  # the trainer loads the reference model by name


def text(ids, *, completion=False):
    """Words of ids; the trainer ends a completion with EOS, hence one word less, and a blank separates it."""
    said = " ".join(f"t{min(token, vocab - 3)}" for token in (ids[:-1] if completion else ids))
    return f" {said}" if completion else said


names = ("chosen", "rejected") if work["method"] == "dpo" else ("completion",)
rows = [
    {"prompt": text(prompt)} | {name: text(ids, completion=True) for name, ids in zip(names, given, strict=True)}
    for step in work["records"]
    for prompt, *given in step
]
common = dict(
    output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, fp16=False, gradient_checkpointing=False,
    per_device_train_batch_size=len(work["records"][0]), gradient_accumulation_steps=1,
    max_length=work["prompt_length"] + work["completion_length"], max_steps=len(work["records"]), learning_rate=1e-5,
    lr_scheduler_type="constant", report_to="none", logging_steps=10**6, save_strategy="no", disable_tqdm=True,
    dataloader_num_workers=0, train_sampling_strategy="sequential",
)  # fmt: skip
ends = []


class Clock(TrainerCallback):
    """Records when a step ends."""

    def on_step_end(self, *_, **__):
        ends.append(time.perf_counter())


rest = dict(model=model, train_dataset=Dataset.from_list(rows), processing_class=tokenizer, callbacks=[Clock()])
if work["method"] == "dpo":
    trainer = DPOTrainer(args=DPOConfig(beta=0.1, **common), **rest)
else:
    trainer = SFTTrainer(args=SFTConfig(completion_only_loss=True, **common), **rest)
begin = time.perf_counter()
trainer.train()
seconds = [after - before for before, after in zip([begin, *ends], ends, strict=False)]
print(json.dumps({"name": "trl", "step_s": seconds}))
