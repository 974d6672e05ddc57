"""Inpainting-guided sampling (IGPO): hints of a reference answer for groups whose answers are all wrong. numpy only.

Source: arXiv 2509.10396; facebookresearch/igpo, utils/generate.py and trainer_igpo.py. What differs from that code: a
chunk stands where it stands in the reference (the code moves chunks apart, up to 1.5 times, if the answer may be
longer), and the reference's last chunk is drawn like the others (the code's default always shows it).
"""

import numpy as np


def chunks_of(length: int, min_chunk: int, max_chunk: int, rng: np.random.Generator) -> list[tuple[int, int]]:
    """Cuts 0..length into chunks of min_chunk to max_chunk positions: [(start, end)]. A shorter rest is left out."""
    chunks, start = [], 0
    while start < length:
        size = min(int(rng.integers(min_chunk, max_chunk + 1)), length - start)
        if size < min_chunk:
            break
        chunks.append((start, start + size))
        start += size
    return chunks


def hint(
    reference: np.ndarray,
    share: float,
    length: int,
    *,
    mask_id: int,
    min_chunk: int,
    max_chunk: int,
    rng: np.random.Generator,
) -> np.ndarray:
    """An answer to complete: some chunks of the reference, and the mask token elsewhere. int32 [C].

    Of K chunks, int(K (1 - share)) random ones are masked.

    Args:
      reference: int [n], token ids; those beyond C are left out.
      share: of the chunks that are shown.
      length: C.
      mask_id: the mask token.
      min_chunk: fewest tokens of a chunk.
      max_chunk: most tokens of a chunk.
      rng: draws the chunks.
    """
    reference = np.asarray(reference)[:length]
    chunks = chunks_of(len(reference), min_chunk, max_chunk, rng)
    number = int(len(chunks) * (1.0 - share) + 1e-9)  # 0.8 x 5 is 4
    hidden = set(rng.choice(len(chunks), number, replace=False).tolist()) if number else set()
    result = np.full(length, mask_id, np.int32)
    for index, (start, end) in enumerate(chunks):
        if index not in hidden:
            result[start:end] = reference[start:end]
    return result


def hopeless_groups(success: np.ndarray, group_size: int) -> np.ndarray:
    """Groups without any success, the only ones that get hints. float [B] -> bool [B / G]."""
    return success.reshape(-1, group_size).max(axis=1) <= 0.0


def replacements(
    success: np.ndarray, hopeless: np.ndarray, group_size: int, limit: int, rng: np.random.Generator
) -> list[tuple[int, int]]:
    """Which rows a hinted answer replaces: [(row, hinted row)], in the hopeless groups only.

    The first rows of a group are replaced by right hinted ones of the same group, `limit` at most, drawn at random.

    Args:
      success: float [B], of the hinted answers.
      hopeless: bool [B / G].
      group_size: G.
      limit: rows per group.
      rng: draws among the right ones.
    """
    result = []
    for group in np.flatnonzero(hopeless):
        start = int(group) * group_size
        right = start + np.flatnonzero(success[start : start + group_size] > 0.0)
        chosen = rng.permutation(right)[:limit]
        result += [(start + place, int(row)) for place, row in enumerate(chosen)]
    return result
