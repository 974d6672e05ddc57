"""What happens in a world in words: captions of observations, for a language model that never sees the numbers.

Each is (observation, numpy float32 [D], keywords) -> a text. One's own is "my_module:caption".
"""

import numpy as np


def errands(observation: np.ndarray) -> str:
    """Of probes/errands with shown=True: A is a shop with a parcel, B the house that it is for."""
    length = len(observation) - 1
    place, has = int(np.argmax(observation[:length])), observation[length] > 0.5
    if has and place == length - 1:
        return "You hand over the parcel. The errand is done."
    if has and place == 0:
        return "You are in the shop and hold the parcel."
    if has:
        return f"You hold the parcel. The house is {_steps(length - 1 - place)} away."
    if place == length - 1:
        return "You stand at the house with empty hands."
    return f"Your hands are empty. The shop is {_steps(place)} away."


def _steps(count: int) -> str:
    return f"{count} step{'s' if count != 1 else ''}"
