"""preferences/contrast.py: contrasts by shared words, the two-by-two table, pairs from them."""

import itertools

import numpy as np
import pytest

from rl_jax.preferences import contrast

PROMPTS = ["name a red fruit", "name a blue fruit", "sing", "name a red car", "name a red fruit"]
RESPONSES = ["cherry", "plum", "la", "none", "cherry"]


def jaccard(a, b):
    a, b = set(a.split()), set(b.split())
    return len(a & b) / len(a | b)


def test_contrasts_are_the_nearest_prompts_with_another_response():
    found = contrast.find_contrasts(PROMPTS, RESPONSES)
    pairs = {frozenset(c.prompts) for c in found}
    assert pairs == {frozenset(PROMPTS[:2]), frozenset((PROMPTS[0], PROMPTS[3]))}
    for c in found:
        assert jaccard(*c.prompts) >= 0.5 and c.responses[0] != c.responses[1]
        assert all(RESPONSES[PROMPTS.index(p)] == r for p, r in zip(c.prompts, c.responses, strict=True))
    assert contrast.find_contrasts(PROMPTS, RESPONSES, at_least=0.7) == []
    assert contrast.find_contrasts(PROMPTS, ["same"] * 5) == []
    with pytest.raises(ValueError, match="5 prompts with 1 responses"):
        contrast.find_contrasts(PROMPTS, ["x"])


def test_the_nearest_one_is_the_nearest_of_all():
    rng = np.random.default_rng(0)
    prompts = list(dict.fromkeys(" ".join(rng.choice(list("abcdef"), 4)) for _ in range(12)))
    found = contrast.find_contrasts(prompts, [str(i) for i in range(len(prompts))], at_least=0.1)
    chosen = {frozenset(c.prompts) for c in found}
    for prompt in prompts:
        others = [p for p in prompts if p != prompt]
        best = max(jaccard(prompt, p) for p in others)
        if best >= 0.1:
            assert any(frozenset((prompt, p)) in chosen for p in others if jaccard(prompt, p) == best)


def test_consistency_is_the_two_by_two_table():
    tables = np.array([np.reshape(order, (2, 2)) for order in itertools.permutations(range(4))], float)
    response = [t[0, 0] > t[0, 1] and t[1, 1] > t[1, 0] for t in tables]
    instruction = [t[0, 0] > t[1, 0] and t[1, 1] > t[0, 1] for t in tables]
    found = contrast.consistency(tables)
    assert found == pytest.approx(
        dict(response=np.mean(response), instruction=np.mean(instruction), response_each=0.5, instruction_each=0.5)
    )
    # A reward of the response alone knows neither its prompt nor both right responses.
    blind = contrast.consistency([[[1.0, 2.0], [1.0, 2.0]]])
    assert blind == dict(response=0.0, instruction=0.0, response_each=0.5, instruction_each=0.0)
    assert set(contrast.consistency([[[1.0, 0.0], [0.0, 1.0]]]).values()) == {1.0}
    with pytest.raises(ValueError, match=r"rewards of .contrasts, 2, 2., found \(2, 2\)"):
        contrast.consistency([[1.0, 0.0], [0.0, 1.0]])


def test_each_contrast_gives_two_pairs():
    rows = contrast.augment([contrast.Contrast(("p", "q"), ("x", "y"))])
    assert rows == [
        {"prompt": "p", "chosen": "x", "rejected": "y"},
        {"prompt": "q", "chosen": "y", "rejected": "x"},
    ]
