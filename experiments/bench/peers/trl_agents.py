"""TRL's GRPOTrainer with `environment_factory` on the work of experiments.bench.agents_peers: PYTHON trl_agents.py
WORK.json.

PYTHON has `trl==1.16.0`, `torch==2.13.0`, transformers, accelerate, datasets. The tokenizer has one token per
character; its chat template writes the contents one after the other, and its `parse_response` reads "c12*34" as a
call of the tool `calculator`. A turn has a limit of its own by generation_kwargs. Prints one JSON line.
"""

import json
import os
import sys
import tempfile
import warnings

os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", TRANSFORMERS_VERBOSITY="error")
os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
warnings.filterwarnings("ignore")

import calculator_game  # noqa: E402
import torch  # noqa: E402
from datasets import Dataset  # noqa: E402
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers  # noqa: E402
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, TrainerCallback  # noqa: E402
from trl import GRPOConfig, GRPOTrainer  # noqa: E402

work = json.load(open(sys.argv[1]))
batch, group_size, steps = work["prompts_per_step"], work["group_size"], work["steps"]
rows = batch * group_size
counts = calculator_game.Counts(steps, rows)
torch.manual_seed(work["seed"])

SPECIAL = ("<pad>", "<bos>", "<eos>")
TEMPLATE = (
    "{{ '<bos>' }}{% for message in messages %}{% if message['tool_calls'] %}{% for call in message['tool_calls'] %}"
    "{{ call['function']['name'] + (call['function']['arguments'] | tojson) + '<eos>' }}{% endfor %}"
    "{% else %}{{ message['content'] }}{% endif %}{% endfor %}"
)


class Characters(PreTrainedTokenizerFast):
    """One token per character; a turn that begins with "c" is a call."""

    def parse_response(self, response, **_):
        """The message of a turn's ids."""
        said = self.decode(response, skip_special_tokens=True)
        if not said.startswith(calculator_game.CALL):
            return {"role": "assistant", "content": said}
        call = {"name": "calculator", "arguments": {"said": said}}
        return {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": call}]}


words = Tokenizer(
    models.WordLevel({name: index for index, name in enumerate((*SPECIAL, *work["alphabet"]))}, unk_token="<pad>")
)
words.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
words.decoder = decoders.Fuse()
tokenizer = Characters(
    tokenizer_object=words, **dict(zip(("pad_token", "bos_token", "eos_token"), SPECIAL, strict=True))
)
tokenizer.chat_template = TEMPLATE
tokenizer.response_template = {"defaults": {"role": "assistant"}}  # parse_response above does not read it
assert tokenizer("12*34=?c")["input_ids"] == [3 + work["alphabet"].index(c) for c in "12*34=?c"]


class Calculator:
    """One episode."""

    def reset(self, **_):
        """Begins an episode."""
        self._rewards, self._calls = 0.0, 0

    def calculator(self, said: str) -> str:
        """Computes a product.

        Args:
            said: the call.

        Returns:
            The result.
        """
        answer, reward, _ = calculator_game.step(said, "", work["price"])
        self._rewards, self._calls = self._rewards + reward, self._calls + 1
        return answer


def reward(completions, answer, environments, **_):
    """The answer's reward and what the calls cost; counts the step."""
    found, step = [], len(counts.ends)
    for messages, right, env in zip(completions, answer, environments, strict=True):
        last, solved = messages[-1], 0.0
        if last["role"] == "assistant" and not last.get("tool_calls"):
            solved = calculator_game.step(last["content"], right, work["price"])[2]
        # The last turn may be a call that nothing answers any more; ours pays for it, too.
        unanswered = sum(len(message.get("tool_calls") or ()) for message in messages) - env._calls
        found.append(env._rewards + solved - work["price"] * unanswered)
        counts.add(step, solved=solved, calls=env._calls + unanswered)
    return found


class Trainer(GRPOTrainer):
    """GRPOTrainer that counts the tokens which the model sampled."""

    def _generate(self, prompts):
        result = super()._generate(prompts)
        counts.add(len(counts.ends), tokens=sum(map(sum, result[2])))
        return result


class Clock(TrainerCallback):
    """Records when a step ends."""

    def on_step_end(self, *_, **__):
        counts.updated()


dataset = Dataset.from_list(
    [{"prompt": [{"role": "user", "content": prompt}], "answer": answer} for prompt, answer in work["problems"]]
)
model = AutoModelForCausalLM.from_pretrained(work["model"], dtype=torch.float32, attn_implementation="sdpa")
arguments = GRPOConfig(
    output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, fp16=False, gradient_checkpointing=False,
    per_device_train_batch_size=rows, gradient_accumulation_steps=1, num_generations=group_size,
    max_completion_length=work["row"], generation_kwargs={"max_new_tokens": work["turn_tokens"]},
    max_tool_calling_iterations=work["turns"] - 1, temperature=1.0, top_p=1.0, top_k=0, beta=0.0, epsilon=0.2,
    loss_type="bnpo", scale_rewards="none", num_iterations=1, max_steps=steps, learning_rate=work["rate"],
    lr_scheduler_type="constant", weight_decay=0.0, max_grad_norm=1.0, report_to="none", logging_steps=10**6,
    save_strategy="no", disable_tqdm=True, dataloader_num_workers=0, shuffle_dataset=False, seed=work["seed"],
)  # fmt: skip
trainer = Trainer(
    model=model, reward_funcs=reward, args=arguments, train_dataset=dataset, processing_class=tokenizer,
    environment_factory=Calculator, callbacks=[Clock()],
)  # fmt: skip
trainer.train()
print(json.dumps(counts.result("trl")))
