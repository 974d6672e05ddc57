"""rl_jax.control.reward_code: what is computed beside numpy, and what is refused."""

import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax.control import reward_code

KNOWN = reward_code.Known(("x", "y", "done"), {"obs": 3}, reserved=("not_finite",))


def values():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 4, 5)).astype(np.float32)
    return {"x": x, "y": y, "done": (rng.random((4, 5)) < 0.5) * 1.0, "obs": rng.normal(size=(4, 5, 3))}


def computed(text):
    arrays = {name: jnp.asarray(x, jnp.float32) for name, x in values().items()}
    return reward_code.evaluate(reward_code.parse(text, KNOWN), arrays, (4, 5))


X, Y, DONE, OBS = (values()[name] for name in ("x", "y", "done", "obs"))
AS_NUMPY = {
    "x + y * 2 - x / (y + 10)": X + Y * 2 - X / (Y + 10),
    "-x ** 2 + +y": -(X**2) + Y,
    "x // 0.5 + x % 0.5": np.floor_divide(X, 0.5) + np.mod(X, 0.5),
    "exp(-abs(x)) + log(1 + square(y)) + log1p(abs(y))": np.exp(-abs(X)) + np.log(1 + Y**2) + np.log1p(abs(Y)),
    "sqrt(abs(x)) + sign(y) + floor(x)": np.sqrt(abs(X)) + np.sign(Y) + np.floor(X),
    "sin(x) + cos(y) + tanh(x) + arctan2(x, y)": np.sin(X) + np.cos(Y) + np.tanh(X) + np.arctan2(X, Y),
    "minimum(x, y) + maximum(x, 0.1)": np.minimum(X, Y) + np.maximum(X, 0.1),
    "min(x, y, 0.0) + max(x, y, 0.5, -1.0)": np.minimum(np.minimum(X, Y), 0) + np.maximum(np.maximum(X, Y), 0.5),
    "clip(x, -0.5, 0.5)": np.clip(X, -0.5, 0.5),
    "where(x > y, 1.0, x)": np.where(X > Y, 1.0, X),
    "(x > 0) + 2 * (x <= y)": (X > 0) * 1.0 + 2.0 * (X <= Y),
    "-0.5 < x < y": ((-0.5 < X) & (X < Y)) * 1.0,
    "(x != x) + (done == 1) + (y >= 0)": (DONE == 1) * 1.0 + (Y >= 0),
    "(x > 0) and (y > 0) or done": (((X > 0) & (Y > 0)) | (DONE != 0)) * 1.0,
    "not (x > 0)": (X <= 0) * 1.0,
    "x if done else obs[2]": np.where(DONE != 0, X, OBS[..., 2]),
    "True": np.ones((4, 5)),
}


@pytest.mark.parametrize("text", AS_NUMPY)
def test_expressions_beside_numpy(text):
    (name, found), *others = computed(text).items()
    assert name == "reward" and not others and found.shape == (4, 5) and found.dtype == jnp.float32
    np.testing.assert_allclose(found, AS_NUMPY[text], rtol=2e-5, atol=2e-5)


def test_components_are_what_varies_before_the_reward():
    text = "scale = 0.5  # a number is no component\nnear = exp(-abs(x) / scale)\nboth = near + y\nreward = 2 * both"
    code = reward_code.parse(text, KNOWN)
    assert code.components == ("near", "both")
    found = computed(text)
    near = np.exp(-abs(X) / 0.5)
    np.testing.assert_allclose(found["near"], near, rtol=1e-5)
    np.testing.assert_allclose(found["reward"], 2 * (near + Y), rtol=1e-5, atol=1e-6)
    assert list(found) == ["near", "both", "reward"]


REFUSED = {
    "": "line 1: 0 lines of code",
    "reward = ": "line 1: the text is no Python",
    "a = x\nreward = z + a": r"line 2: z is an unknown name. Allowed: names x, y, done; .*; assigned above: a",
    "reward = np.exp(x)": r"'np.exp' is no function that may be called",
    "reward = __import__('os')": "is no function that may be called",
    "reward = x.real": r"'x.real' \(Attribute\) is not allowed",
    "reward = (lambda: 1)()": "is no function that may be called",
    "reward = [x for x in (1, 2)]": "ListComp",
    "reward = 'text'": "Constant",
    "reward = x @ y": "BinOp",
    "reward = x is y": "Compare",
    "reward = exp": "exp is a function: give it arguments",
    "reward = exp(x, y)": "exp takes 1 arguments, not 2",
    "reward = max(x)": "max takes 2 to 8 arguments, not 1",
    "reward = clip(x, low=0, high=1)": "without names",
    "reward = exp(*obs)": "Starred",
    "reward = obs": r"obs is a vector: read an entry of it, obs\[0\]",
    "reward = obs[3]": "obs has entries 0 to 2, not 3",
    "reward = obs[-1]": "Subscript",
    "reward = obs[True]": "obs has entries 0 to 2, not True",
    "reward = obs[x]": "Subscript",
    "reward = x[0]": "x is no vector",
    f"reward = obs[{'9' * 3000}]": r"obs has entries 0 to 2, not 9{40,60}\.\.\.\. Allowed",
    f"reward = obs[0x{'f' * 3900}]": "line 1: obs has entries 0 to 2, not an expression with a huge number",
    f"reward = (0x{'f' * 3900}).real": "line 1: an expression with a huge number .*is not allowed",
    f"reward = 0x{'f' * 3900}": "line 1: a number is above",
    f"{'y' * 61} = x\nreward = 1": "line 1: yyyyyyyyyyyyyyyyyyyy... is a name of 61 characters, at most 60 are read",
    "reward = 1e999": "a number is above",
    "reward = 2j": "Constant",
    "x = 1.0\nreward = x": "line 1: x has a meaning already",
    "exp = 1.0\nreward = exp": "exp has a meaning already",
    "not_finite = x\nreward = x": "not_finite has a meaning already",
    "reward = x\nreward = y": "line 2: reward is assigned twice",
    "reward = x\nlast = y": "the last line must assign reward, not last",
    "a, b = x, y\nreward = a": "must be `name = expression`, not Assign",
    "reward += x": "not AugAssign",
    "import os\nreward = x": "line 1: a line must be `name = expression`, not Import",
    "def reward(x):\n    return x": "not FunctionDef",
    "x\nreward = x": "not Expr",
    f"reward = {'-' * 60}x": "nested deeper than 32",
    f"reward = {' + '.join(['x'] * 300)}": "more than 400 operations",
    f"reward = {'(' * 300}x{')' * 300}": "is no Python",
    f"reward = x{'.real' * 180}": "is not allowed",
    f"reward = x  # {'y' * 4000}": "characters, at most 4000 are read",
    "\n".join(f"a{i} = x" for i in range(24)) + "\nreward = x": "25 lines of code; 1 to 24",
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_is_refused_and_why(text):
    with pytest.raises(ValueError, match=REFUSED[text]) as refusal:
        reward_code.parse(text, KNOWN, label="candidate 3")
    assert str(refusal.value).startswith("candidate 3")
