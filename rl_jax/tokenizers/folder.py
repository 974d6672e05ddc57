"""Reads the tokenizer of a Hugging Face folder: tokenizer.json, else tokenizer.model, else vocab.json + merges.txt.

The tokens that begin, end and pad a text come from special_tokens_map.json and tokenizer_config.json (by text) and from
generation_config.json and config.json (by id). With split_special_tokens in tokenizer_config.json, special tokens that
a text spells out stay text, as in transformers. No code from the folder is executed.
"""

import pathlib
import re
from collections.abc import Callable, Collection, Mapping, Sequence

from rl_jax.data import plain_files, readers
from rl_jax.tokenizers import hf, spm
from rl_jax.tokenizers.base import Roles


def load_tokenizer(folder: str | pathlib.Path, *, eos_tokens: Sequence[str] | None = None):
    """The tokenizer of a model's folder, with the protocol of rl_jax.tokenizers.base.

    Args:
      folder: of the model.
      eos_tokens: texts of the tokens that end a text, overriding the folder's; the first is `eos_id`.

    Raises:
      readers.DataError: if a file is missing, incomplete or contradicts another, or no file has an end token; names the
        file.
    """
    folder = pathlib.Path(folder)
    if not folder.is_dir():
        raise readers.DataError(f"{folder}: no such folder: give the one with tokenizer.json")
    config = read_json(folder / "tokenizer_config.json") or {}
    description = read_json(folder / "tokenizer.json")
    model, vocab, merges = (folder / name for name in ("tokenizer.model", "vocab.json", "merges.txt"))
    if description is None and model.exists():
        listed = config.get("added_tokens_decoder", {}).values()
        tokenizer = spm.SentencePieceTokenizer(
            plain_files.read_bytes(model, plain_files.MAX_JSON),
            added=_added_tokens(folder, config),
            ordinary={token["content"] for token in listed if not token.get("special", True)},
            legacy=bool(config.get("legacy", True)),
            path=model,
        )
        roles = special_tokens(folder, config, tokenizer.token_to_id, eos_tokens)
        tokenizer = tokenizer.with_roles(roles._replace(adds_bos=config.get("add_bos_token", True)))  # as Llama's
        return _checked_roles(tokenizer, tokenizer.added_ids, folder)
    path = folder / "tokenizer.json"
    if description is None:
        missing = [file.name for file in (vocab, merges) if not file.exists()]
        if missing:
            instead = f"{missing[0]} is missing" if len(missing) == 1 else "neither are vocab.json and merges.txt"
            raise readers.DataError(
                f"{folder}: tokenizer.json and tokenizer.model are not there, {instead}: "
                "copy the tokenizer's files into the folder"
            )
        description, path = hf.gpt2_description(vocab, merges, config.get("tokenizer_class")), vocab
    description = _with_added(description, _added_tokens(folder, config), config, path)
    ids = _vocabulary(description, path)
    roles = special_tokens(folder, config, ids.get, eos_tokens)
    # As in transformers: tokenizer.json has the last word. What only has vocab.json is GPT-2's kind, without a BOS.
    written = hf.first_token(description, path)
    adds = config.get("add_bos_token", False) if path == vocab else written == roles.texts.get("bos_token", "")
    roles = roles._replace(adds_bos=adds)
    # A token that is special by name is special in a text, too, even if tokenizer.json does not list it so.
    named = {text: ids[text] for text in roles.texts.values() if text in ids}
    split = config.get("split_special_tokens") is True
    description = _with_added(description, named, config, path)
    tokenizer = hf.HFTokenizer(description, roles, path=path, split_special_tokens=split)
    return _checked_roles(tokenizer, tokenizer.added_ids, folder)


def _checked_roles(tokenizer, special: Collection[int], folder: pathlib.Path):
    """The tokenizer itself. Refuses an EOS or a pad id that is a token of ordinary text.

    Such an EOS would end texts in the middle, and such a pad token would be left out of every decoded text. Tokens that
    look like special ones, as in <unk>, pass.
    """
    whole = tokenizer._whole
    text_of = whole.id_to_token if hasattr(whole, "id_to_token") else whole.id_to_piece
    for role, ids in (("eos_token_id", tokenizer.eos_ids), ("pad_token_id", (tokenizer.pad_id,))):
        for token in ids:
            text = text_of(token) if token < tokenizer.vocab_size and token not in special else None
            if text is not None and not re.fullmatch(r"<.+>|\[.+\]", text):
                raise readers.DataError(
                    f"{folder}: {role} is {token}, which is {text!r}, a token of ordinary text: correct it in "
                    "config.json and generation_config.json"
                )
    return tokenizer


def check_vocabulary(tokenizer, vocab_size: int, path: str | pathlib.Path) -> None:
    """Checks that every id of the tokenizer has a row in an embedding of `vocab_size` rows.

    Rows beyond the tokenizer's ids are fine: embeddings are padded to round sizes.

    Args:
      tokenizer: see base.
      vocab_size: rows of the embedding.
      path: the model's folder, for the error message.

    Raises:
      readers.DataError: if an id has no row.
    """
    if tokenizer.vocab_size > vocab_size:
        raise readers.DataError(
            f"{path}: the embedding has {vocab_size} rows, the tokenizer {getattr(tokenizer, 'path', '')} has ids up "
            f"to {tokenizer.vocab_size - 1}: they belong to different models, or tokens were added without new rows"
        )
    for role, ids in (("eos_token_id", tokenizer.eos_ids), ("pad_token_id", (tokenizer.pad_id,))):
        beyond = [token for token in ids if token >= vocab_size]
        if beyond:
            raise readers.DataError(
                f"{path}: {role} is {beyond[0]}, but the embedding has {vocab_size} rows: correct it in config.json "
                "and generation_config.json"
            )


def special_tokens(
    folder: pathlib.Path, config: Mapping, token_to_id: Callable[[str], int | None], eos_tokens: Sequence[str] | None
) -> Roles:
    """The special tokens according to the folder's files.

    The tokenizer's own EOS comes first (the one to train on), then every EOS of generation_config.json (chat models end
    turns and texts with different tokens). Without a pad token the EOS fills rows, where everything masks it.
    """
    texts, places = {}, {}
    for place, data in (
        ("special_tokens_map.json", read_json(folder / "special_tokens_map.json") or {}),
        ("tokenizer_config.json", config),
    ):
        for name, value in data.items():
            content = value.get("content") if isinstance(value, Mapping) else value
            if name.endswith("_token") and isinstance(content, str):
                texts[name], places[name] = content, place
    generation = {}
    for name in ("config.json", "generation_config.json"):
        fields = read_json(folder / name) or {}
        for key in ("eos_token_id", "pad_token_id"):
            if fields.get(key) is not None:
                generation[key], places[key] = _token_ids(folder / name, key, fields[key]), folder / name

    def id_of(name, text):
        token = token_to_id(text)
        if token is None:
            place = places.get(name, name)
            raise readers.DataError(
                f"{folder / place}: {name} is {text!r}, which is not in the vocabulary: the "
                "files belong to different tokenizers"
            )
        return token

    ends = [id_of("eos_token", texts["eos_token"])] if "eos_token" in texts else []
    ends += generation.get("eos_token_id", [])
    if eos_tokens is not None:
        ends = [id_of("eos_tokens", text) for text in eos_tokens]
    if not ends:
        raise readers.DataError(
            f"{folder}: no file names the EOS token: put eos_token into "
            "tokenizer_config.json, or pass eos_tokens=[...]"
        )
    bos = id_of("bos_token", texts["bos_token"]) if "bos_token" in texts else None
    pads = generation.get("pad_token_id", ends[:1])
    pad = id_of("pad_token", texts["pad_token"]) if "pad_token" in texts else pads[0]
    if pad < 0:  # Llama 1 and 2 have -1 for none
        pad = ends[0]
    return Roles(bos, tuple(dict.fromkeys(ends)), pad, texts)


def _token_ids(path: pathlib.Path, name: str, value: object) -> list[int]:
    """The ids of a field: an integer or a list of them. Refuses other values, and ids of EOS below 0."""
    ids = value if isinstance(value, list) else [value]
    whole = all(isinstance(token, int) and not isinstance(token, bool) for token in ids)
    if not ids or not whole or (name == "eos_token_id" and min(ids) < 0):
        raise readers.DataError(f"{path}: {name} is {value!r:.80}: it must be a token's id, or a list of ids")
    return ids


def read_json(path: pathlib.Path) -> dict | None:
    """The object in a JSON file; None if there is no file.

    Raises:
      readers.DataError: if the file does not hold a JSON object, is no regular file, too large or nested too deep.
    """
    if not path.exists():
        return None
    try:
        data = plain_files.read_json(path)
    except OSError as error:
        raise readers.DataError(f"{path}: not a readable JSON file ({error}): is the download complete?") from error
    if not isinstance(data, dict):
        raise readers.DataError(f"{path}: expected a JSON object, found {type(data).__name__}")
    return data


def _added_tokens(folder: pathlib.Path, config: Mapping) -> dict[str, int]:
    """Tokens outside the vocabulary, text -> id: added_tokens.json, and added_tokens_decoder of the config."""
    added = dict(read_json(folder / "added_tokens.json") or {})
    decoder = config.get("added_tokens_decoder", {})
    return added | {token["content"]: int(number) for number, token in decoder.items()}


def _vocabulary(description: Mapping, path: pathlib.Path) -> dict[str, int]:
    model = description.get("model")
    if isinstance(model, Mapping) and (dropout := model.get("dropout")):
        raise readers.DataError(
            f"{path}: model.dropout is {dropout!r}: one text would have other tokens each time. Set it to null"
        )
    try:
        vocab = description["model"]["vocab"]
        if isinstance(vocab, list):  # unigram: (piece, score), the index is the id
            vocab = {piece: index for index, (piece, _) in enumerate(vocab)}
        return vocab | {token["content"]: token["id"] for token in description.get("added_tokens") or []}
    except (KeyError, TypeError, ValueError) as error:
        raise readers.DataError(f"{path}: has no field model.vocab as the tokenizers package writes it") from error


def _with_added(description: Mapping, added: Mapping[str, int], config: Mapping, path: pathlib.Path) -> dict:
    """The description, extended by the folder's added tokens that it does not list, at the ids given by the folder."""
    known, options = _vocabulary(description, path), config.get("added_tokens_decoder", {})
    listed = list(description.get("added_tokens") or [])
    contents = {token["content"] for token in listed}
    for text, number in sorted(added.items(), key=lambda item: item[1]):
        if known.get(text, number) != number:
            raise readers.DataError(
                f"{path}: {text!r} has id {known[text]} there and {number} in the folder's added "
                "tokens: the files belong to different tokenizers"
            )
        if text not in contents:
            flags = {
                key: bool(options.get(str(number), {}).get(key, key == "special"))
                for key in ("single_word", "lstrip", "rstrip", "normalized", "special")
            }
            listed.append({"id": number, "content": text, **flags})
    return {**description, "added_tokens": listed}
