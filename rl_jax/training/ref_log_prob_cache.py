"""Reference log-probs on disk, in files named by a hash of what determines them. numpy, no jax.

The reference policy of an offline method never changes, and neither do its log-probs. One pass over the data serves
every epoch and every later run with the same reference, data and scoring.

    arrays, _ = preferences.encode_preferences(tokenizer, records, prompt_buckets=(256,), completion_length=128)
    score = jax.jit(make_score(model, completion_length=128))

    def score_rows(rows):                                    # [n, K, ...] -> float32 [n, K, C]
        flat = preferences.rows_of(rows)
        batch = TokenBatch(flat["tokens"], flat["positions"], flat["segment_ids"])
        return np.asarray(score(params, batch).log_probs).reshape(rows["completion_mask"].shape)

    identity = {"params": checkpoint.checksum(params), "dtype": "float32", "temperature": 1.0}
    cache = ReferenceCache(folder, identity)
    ref_log_probs = cache.get_or_make(arrays, score_rows, batch_size=64)
    batch = PreferenceBatch(..., ref_log_probs=ref_log_probs[chosen_rows])
"""

import hashlib
import io
import json
import os
import pathlib
import uuid
import warnings
from collections.abc import Callable, Mapping

import numpy as np

from rl_jax.data.writing import named

ROWS = ("tokens", "positions", "segment_ids", "completion_mask")  # what a score depends on


class ReferenceCache:
    """A folder with one file per set of rows. made: how many sets were scored here instead of being read."""

    def __init__(self, folder: str | os.PathLike, identity: Mapping):
        """Opens the folder, which is created by the first write.

        Args:
          folder: where the files are.
          identity: JSON values that determine the log-probs, besides the rows: the checksum of the reference's params
            (rl_jax.training.checkpoint.checksum), the temperature, the dtype. Anything missing here is assumed to be
            equal.

        Raises:
          ValueError: if identity has no "params".
        """
        if not identity.get("params"):
            raise ValueError("identity needs 'params', the checksum of the reference: it tells references apart")
        self.folder, self.made = pathlib.Path(folder).expanduser(), 0
        self._identity = json.dumps(dict(identity), sort_keys=True)

    def path(self, arrays: Mapping[str, np.ndarray]) -> pathlib.Path:
        """The file of the log-probs of `arrays`, whether or not it exists."""
        return self.folder / f"{self._key(arrays)}.npz"

    def get_or_make(
        self, arrays: Mapping[str, np.ndarray], score: Callable[[dict], np.ndarray], *, batch_size: int
    ) -> np.ndarray:
        """Reads the log-probs of `arrays`, or scores them once and writes the file.

        A file that cannot be read causes a warning and is made again. If several processes score together, they must
        share the folder: either all of them find the file or none does.

        Args:
          arrays: tokens, positions, segment_ids [N, .., T] and completion_mask bool [N, .., C], as encode_preferences
            and encode_labels return them.
          score: called with dicts of those arrays, batch_size of N; returns float [batch_size, .., C]. The last batch
            is filled up with rows from the beginning, so that there is one shape.
          batch_size: rows of N per call.

        Returns:
          float32, shaped like completion_mask. Log-probs, 0 outside the mask.

        Raises:
          ValueError: if a score is not finite or differs in shape from its mask.
        """
        path, mask = self.path(arrays), arrays["completion_mask"]
        result = np.zeros(mask.shape, np.float32)
        values = self._read(path, int(mask.sum()))
        if values is None:
            values = self._score(arrays, score, batch_size)
            self._write(path, values)
            self.made += 1
        result[mask] = values
        return result

    def _key(self, arrays: Mapping[str, np.ndarray]) -> str:
        digest = hashlib.sha256(self._identity.encode())
        for name in ROWS:
            array = np.ascontiguousarray(arrays[name])
            digest.update(f"\n{name} {array.dtype} {array.shape}\n".encode())
            digest.update(array.tobytes())
        return digest.hexdigest()[:32]

    def _read(self, path: pathlib.Path, count: int) -> np.ndarray | None:
        """The `count` values of a file; None if it is missing or damaged."""
        if not path.exists():
            return None
        try:
            with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as file:
                values, identity = file["log_probs"], str(file["identity"])  # zip verifies the bytes on reading
            if identity != self._identity or values.shape != (count,) or values.dtype != np.float32:
                raise ValueError(f"holds {values.dtype} {values.shape} of {identity}")
        except Exception as error:  # zipfile and numpy raise all kinds of errors on damaged bytes
            warnings.warn(f"{path} is damaged and is rebuilt: {error!r:.200}", stacklevel=3)
            return None
        return values

    def _write(self, path: pathlib.Path, values: np.ndarray) -> None:
        content = io.BytesIO()
        np.savez(content, log_probs=values, identity=np.array(self._identity))
        partial = path.with_name(f".{path.name}.{uuid.uuid4().hex}")  # two runs may write the same file at once
        with named(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                with open(partial, "wb") as file:
                    file.write(content.getvalue())
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(partial, path)
            finally:
                partial.unlink(missing_ok=True)

    @staticmethod
    def _score(arrays: Mapping[str, np.ndarray], score: Callable, batch_size: int) -> np.ndarray:
        """The values under the mask, in its order."""
        mask, result = arrays["completion_mask"], []
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        for start in range(0, len(mask), batch_size):
            count = min(batch_size, len(mask) - start)
            rows = np.concatenate([np.arange(start, start + count), np.arange(batch_size - count) % len(mask)])
            scores = np.asarray(score({name: arrays[name][rows] for name in ROWS}), np.float32)
            if scores.shape != mask[rows].shape:
                raise ValueError(f"score returned {scores.shape} for a mask of {mask[rows].shape}")
            values = scores[:count][mask[rows[:count]]]
            if not np.all(np.isfinite(values)):
                raise ValueError(
                    f"a log-prob of rows {start}..{start + count - 1} is not finite: check the reference's params"
                )
            result.append(values)
        return np.concatenate(result)
