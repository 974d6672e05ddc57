"""rollout/cache.py: what is found, what is shared in whole chunks, and who has to go."""

import numpy as np
import pytest

from rl_jax.rollout.lm.cache import Place, PromptStore


def _prompt(*tokens):
    return np.array(tokens, np.int32)


def test_a_prompt_is_found_by_all_its_tokens():
    store = PromptStore(4, 2)
    place = store.add(_prompt(1, 2, 3), set())
    assert place == Place(place.row, place.row, 0) and store.find(_prompt(1, 2, 3)) == place.row
    for other in ((1, 2), (1, 2, 3, 4), (1, 2, 4), (3, 2, 1)):
        assert store.find(_prompt(*other)) is None


def test_beginnings_are_shared_in_whole_chunks_and_the_last_token_never():
    store = PromptStore(8, 2)
    first = store.add(_prompt(1, 2, 3, 4, 5), set())
    assert store.add(_prompt(1, 2, 3, 9), set())[1:] == (first.row, 2)
    assert store.add(_prompt(1, 2, 3, 4, 9, 9), set())[1:] == (first.row, 4)
    assert store.add(_prompt(1, 2, 3, 4), set())[1:] == (first.row, 2)  # not 4: its last hidden state is needed
    alone = store.add(_prompt(9, 2, 3, 4), set())
    assert alone.source == alone.row and alone.start == 0


def test_the_least_recently_used_goes_first_and_is_forgotten():
    store = PromptStore(2, 2)
    rows = [store.add(_prompt(1, 2, i), set()).row for i in (3, 4)]
    assert store.find(_prompt(1, 2, 3)) == rows[0]
    place = store.add(_prompt(7, 8, 9), set())
    assert place.row == rows[1] and store.find(_prompt(1, 2, 4)) is None and store.find(_prompt(1, 2, 3)) == rows[0]
    assert store.add(_prompt(7, 8, 1), {rows[0]}) == Place(rows[1], rows[1], 2)  # copied from the row it takes
    with pytest.raises(LookupError, match="all 2 rows of the prompt store are in use"):
        store.add(_prompt(5), {0, 1})
    store.clear()
    assert store.find(_prompt(7, 8, 1)) is None and store.add(_prompt(7, 8, 2), set()).start == 0
