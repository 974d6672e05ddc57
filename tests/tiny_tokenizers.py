"""Folders with tokenizers trained on a few sentences, of the kinds that model families use, and chat templates."""

import json

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

CORPUS = [
    "The cat sat on the mat. The dog's bone is under the tree, isn't it?",
    "user assistant system tool: What is 12 + 30? It is 42. Hello there!",
    "Once upon a time there was a little girl who thought about numbers like 3, 7 and 105.",
    "[INST] Answer the question [/INST] I think that the answer is blue.\n\nThank you.",
] * 4
LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QUIET = {"show_progress": False}


def byte_level(special):
    """The kind of Llama 3 and Qwen: byte-level pairs behind a regular expression, nothing put in front."""
    tok = tokenizers.Tokenizer(models.BPE())
    split = pre_tokenizers.Split(tokenizers.Regex(LLAMA3_SPLIT), behavior="isolated")
    byte_step = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tok.pre_tokenizer = pre_tokenizers.Sequence([split, byte_step])
    tok.decoder, tok.post_processor = decoders.ByteLevel(), processors.ByteLevel(trim_offsets=True)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=330, special_tokens=special, initial_alphabet=alphabet, **QUIET)
    tok.train_from_iterator(CORPUS, trainer)
    return tok


def metaspace(special, *, prefix):
    """The kind of Llama 2 and Mistral (`prefix`: a space in front of every text) and of Gemma: ▁ and byte fallback."""
    tok = tokenizers.Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    replace = normalizers.Replace(" ", "▁")
    tok.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), replace]) if prefix else replace
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tok.decoder = decoders.Sequence(steps + [decoders.Strip(content=" ", left=1)] * prefix)
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=420, special_tokens=["<unk>", *special, *byte_tokens], **QUIET)
    tok.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never", split=True)
    tok.train_from_iterator(CORPUS, trainer)
    description = json.loads(tok.to_str())
    description["pre_tokenizer"] = None  # trained by words, as sentencepiece does, used without
    description["added_tokens"] = [t for t in description["added_tokens"] if not t["content"].startswith("<0x")]
    return tokenizers.Tokenizer.from_str(json.dumps(description))


def unigram(special):
    """The kind of T5 and XLNet: a unigram language model, a space in front by the pre-tokenizer."""
    tok = tokenizers.Tokenizer(models.Unigram())
    tok.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tok.decoder = decoders.Metaspace(prepend_scheme="always")
    tok.train_from_iterator(
        CORPUS, trainers.UnigramTrainer(vocab_size=120, special_tokens=["<unk>", *special], unk_token="<unk>", **QUIET)
    )
    return tok


def wordpiece(special):
    """The kind of BERT."""
    tok = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tok.normalizer, tok.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    tok.decoder = decoders.WordPiece()
    tok.train_from_iterator(
        CORPUS, trainers.WordPieceTrainer(vocab_size=200, special_tokens=["[UNK]", *special], **QUIET)
    )
    return tok


def write(folder, tok, config, *, generation=None, template=None, adds_bos=True):
    """Writes the folder as transformers does; returns it. adds_bos: whether a BOS that `config` names begins texts."""
    folder.mkdir(parents=True, exist_ok=True)
    if adds_bos and config.get("bos_token"):
        bos = config["bos_token"]
        begin = processors.TemplateProcessing(
            single=f"{bos} $A", pair=f"{bos} $A {bos} $B", special_tokens=[(bos, tok.token_to_id(bos))]
        )
        tok.post_processor = processors.Sequence([tok.post_processor, begin]) if tok.post_processor else begin
    tok.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **config}
    if template is not None:
        config["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    return folder


LLAMA3 = r"""{{- bos_token }}
{%- if not date_string is defined %}{%- set date_string = strftime_now("%d %b %Y") %}{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\n\n" }}
{{- "Today: " + date_string + "\n" }}
{%- if tools is not none %}
    {%- for t in tools %}{{- t | tojson(indent=4) }}{{- "\n\n" }}{%- endfor %}
{%- endif %}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if message.role == "tool" %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\n\n" }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|eot_id|>" }}
    {%- else %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' }}
        {{- message['content'] | trim + '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}"""
QWEN25 = r"""{%- if tools %}
    {{- '<|im_start|>system\n' }}
    {%- if messages[0]['role'] == 'system' %}
        {{- messages[0]['content'] }}
    {%- else %}
        {{- 'You are helpful.' }}
    {%- endif %}
    {{- "\n\n# Tools\n<tools>" }}
    {%- for tool in tools %}{{- "\n" }}{{- tool | tojson }}{%- endfor %}
    {{- "\n</tools><|im_end|>\n" }}
{%- elif messages[0]['role'] == 'system' %}
    {{- '<|im_start|>system\n' + messages[0]['content'] + '<|im_end|>\n' }}
{%- else %}
    {{- '<|im_start|>system\nYou are helpful.<|im_end|>\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == "user" or (message.role == "system" and not loop.first) or message.role == "assistant" %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}
    {%- elif message.role == "tool" %}
        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != "tool") %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\n<tool_response>\n' + message.content + '\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}{{- '<|im_end|>\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"""
QWEN3 = r"""{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role != "assistant" %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}
    {%- else %}
        {%- set content = message.content %}
        {%- set reasoning_content = '' %}
        {%- if '</think>' in message.content %}
            {%- set content = message.content.split('</think>')[-1].lstrip('\n') %}
            {%- set reasoning_content = message.content.split('</think>')[0].rstrip('\n') %}
            {%- set reasoning_content = reasoning_content.split('<think>')[-1].lstrip('\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index and (loop.last or reasoning_content) %}
            {{- '<|im_start|>assistant\n<think>\n' + reasoning_content.strip('\n') }}
            {{- '\n</think>\n\n' + content.lstrip('\n') }}
        {%- else %}
            {{- '<|im_start|>assistant\n' + content }}
        {%- endif %}
        {{- '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\n\n</think>\n\n' }}{%- endif %}
{%- endif %}"""
GEMMA = r"""{{ bos_token }}{% if messages[0]['role'] == 'system' %}
{{ raise_exception('System role not supported') }}{% endif %}
{%- for message in messages %}
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}
{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}{% set role = message['role'] %}{% endif %}
{{ '<start_of_turn>' + role + '
' + message['content'] | trim + '<end_of_turn>
' }}{% endfor %}{% if add_generation_prompt %}{{'<start_of_turn>model
'}}{% endif %}"""
MISTRAL = r"""{{ bos_token }}{% for message in messages %}
{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}
{%- elif message['role'] == 'assistant' %}{{ ' ' + message['content'] | trim + eos_token }}
{%- else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}{% endfor %}"""
MARKED = r"""{% for message in messages %}{% if message.role == 'assistant' %}
{{ '<|im_start|>assistant\n' }}{% generation %}{{ message.content + '<|im_end|>' }}{% endgeneration %}{{ '\n' }}
{% else %}{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}{% endif %}{% endfor %}
{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""


def llama3(folder, template=LLAMA3):
    """A folder of the Llama 3 Instruct kind: several EOS ids in generation_config.json, no pad token."""
    special = [f"<|{name}|>" for name in ("begin_of_text", "end_of_text", "start_header_id", "end_header_id")]
    special += ["<|eot_id|>", "<|eom_id|>"]
    config = {"bos_token": special[0], "eos_token": "<|eot_id|>"}
    return write(folder, byte_level(special), config, generation={"eos_token_id": [1, 5, 4]}, template=template)


def chatml(folder, template=QWEN25):
    """A folder of the Qwen kind: no BOS, <|im_end|> ends turns, <|endoftext|> pads and ends texts."""
    pad = {"__type": "AddedToken", "content": "<|endoftext|>", "lstrip": False, "rstrip": False, "normalized": False}
    config = {"bos_token": None, "eos_token": "<|im_end|>", "pad_token": pad}
    generation = {"eos_token_id": [2, 0], "bos_token_id": 0, "pad_token_id": 0}
    tok = byte_level(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    return write(folder, tok, config, generation=generation, template=template)


def gemma(folder, template=GEMMA):
    """A folder of the Gemma kind: its eos_token ends texts, generation_config.json adds the token that ends turns."""
    special = ["<pad>", "<eos>", "<bos>", "<start_of_turn>", "<end_of_turn>"]
    tok = metaspace(special, prefix=False)
    config = {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>", "unk_token": "<unk>"}
    generation = {"eos_token_id": [tok.token_to_id("<eos>"), tok.token_to_id("<end_of_turn>")]}
    return write(folder, tok, config, generation=generation, template=template)


def mistral(folder, template=MISTRAL):
    """A folder of the Mistral 7B kind: a space in front of every text, [INST] in plain letters."""
    config = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    return write(folder, metaspace(["<s>", "</s>"], prefix=True), config, template=template)


FAMILIES = {"llama3": llama3, "qwen2.5": chatml, "gemma": gemma, "mistral": mistral}
