"""TRL's GRPOTrainer on the work of experiments.bench.grpo: PYTHON trl_grpo.py WORK.json -> one JSON line.

PYTHON has `trl==1.16.0`, `torch==2.13.0`, transformers, accelerate, datasets. The model is transformers' Qwen3,
randomly initialised, float32. `generate` decodes all rows until the longest has ended; the completions are then cut to
the work's lengths, EOS included.
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
from trl import GRPOConfig, GRPOTrainer  # noqa: E402

work = json.load(open(sys.argv[1]))
sizes, lengths = work["sizes"], work["lengths"]  # lengths: [steps][rows]
steps, vocab, num_prompts = len(lengths), sizes["vocab"], len(work["prompts"][0])
longest = max(max(row) for row in lengths)
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
prompts = [prompt for batch in work["prompts"] for prompt in batch]
dataset = Dataset.from_list([{"prompt": " ".join(f"t{min(t, vocab - 3)}" for t in prompt)} for prompt in prompts])
arguments = GRPOConfig(
    output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, fp16=False, gradient_checkpointing=False,
    per_device_train_batch_size=num_prompts * work["group_size"], gradient_accumulation_steps=1,
    num_generations=work["group_size"], max_completion_length=longest, temperature=1.0, beta=work["beta"],
    epsilon=0.2, loss_type="grpo", num_iterations=1, max_steps=steps, learning_rate=1e-5,
    lr_scheduler_type="constant", report_to="none", logging_steps=10**6, save_strategy="no", disable_tqdm=True,
    dataloader_num_workers=0, shuffle_dataset=False, generation_kwargs={"min_new_tokens": longest},
)  # fmt: skip
ends, rollouts, scores = [], [], []


def reward(completions, **_):
    """The fraction of even tokens: cheap, and different between completions."""
    ids = [[int(word[1:]) for word in text.split() if word[0] == "t"] for text in completions]
    return [sum(token % 2 == 0 for token in row) / max(len(row), 1) for row in ids]


class Trainer(GRPOTrainer):
    """GRPOTrainer with a clock, and completions of the work's lengths."""

    def _generate_single_turn(self, *args, **kwargs):
        start = time.perf_counter()
        completion_ids, *rest = super()._generate_single_turn(*args, **kwargs)
        wanted = lengths[len(rollouts) % steps]
        cut = [
            ids[: length - 1] + [vocab - 1] if length < longest else ids[:length]
            for ids, length in zip(completion_ids, wanted, strict=True)
        ]
        rollouts.append(time.perf_counter() - start)
        return (cut, *rest)

    def _generate_and_score_completions(self, *args, **kwargs):
        start = time.perf_counter()
        result = super()._generate_and_score_completions(*args, **kwargs)
        scores.append(time.perf_counter() - start)
        return result


class Clock(TrainerCallback):
    """Records when a step ends."""

    def on_step_end(self, *_, **__):
        ends.append(time.perf_counter())


trainer = Trainer(
    model=model, reward_funcs=reward, args=arguments, train_dataset=dataset, processing_class=tokenizer,
    callbacks=[Clock()],
)  # fmt: skip
begin = time.perf_counter()
trainer.train()
step_seconds = [b - a for a, b in zip([begin, *ends], ends, strict=False)]
update_seconds = [step - score for step, score in zip(step_seconds, scores, strict=False)]
print(json.dumps({"name": "trl", "step_s": step_seconds, "rollout_s": rollouts, "update_s": update_seconds}))
