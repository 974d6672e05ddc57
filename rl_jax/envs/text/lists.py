"""Own small lists for the worlds of words, and readers of the published ones. No jax.

The published ones are those of `python -m experiments.tools.fetch_data games` (LMRL-Gym's, MIT): Wordle's words and the
hundred largest cities.
"""

import pathlib
from typing import NamedTuple

from rl_jax.data import readers

# Five letters, common, many with letters in common: a guess tells something about all of them.
WORDS = (
    "crane crate trace react slate stale steal least plate pleat petal metal meant table cable bleat "
    "stone notes onset tones atone alone phone prone crown brown drown frown grown groan"
).split()
# Animals, and the letters of what is true of them: f flies, s swims, l lays eggs, h has hair, d lives with people,
# e eats meat, b is bigger than a dog, n is awake at night.
ANIMALS = {
    "owl": "flen", "eagle": "fle", "duck": "fsl", "goose": "fsld", "hen": "ld", "ostrich": "lb", "penguin": "sle",
    "bat": "fhen", "cat": "hden", "dog": "hde", "wolf": "heb", "cow": "hdb", "hippo": "sbn", "whale": "sb",
    "shark": "seb", "snake": "len",
}  # fmt: skip
TRAITS = "fslhdebn"


class City(NamedTuple):
    """A city, its country and the number of its people."""

    name: str
    country: str
    people: int


CITIES = tuple(
    City(*row)
    for row in (
        ("Seoul", "South Korea", 10_231_000), ("Mumbai", "India", 9_925_000), ("Delhi", "India", 7_206_000),
        ("Moscow", "Russia", 8_297_000), ("Tokyo", "Japan", 8_130_000), ("Osaka", "Japan", 2_600_000),
        ("Paris", "France", 2_152_000), ("Lyon", "France", 415_000), ("Berlin", "Germany", 3_472_000),
        ("Munich", "Germany", 1_236_000), ("Madrid", "Spain", 2_881_000), ("Lima", "Peru", 6_321_000),
    )
)  # fmt: skip


def read_words(path: str) -> list[str]:
    """The words of a file with one word a line, .txt or .txt.gz.

    Raises:
      readers.DataError: if the file is missing, or a line is no word of the letters a to z as long as the first.
    """
    words = [line.strip() for line in _lines(path) if line.strip()]
    for number, word in enumerate(words, 1):
        if not (word.isascii() and word.isalpha() and word.islower()) or len(word) != len(words[0]):
            raise readers.DataError(f"{path}, line {number}: {word!r:.40} is no word of {len(words[0])} letters a to z")
    if not words:
        raise readers.DataError(f"{path} has no word")
    return list(dict.fromkeys(words))


def read_cities(path: str) -> list[City]:
    """The cities of a file with lines "RANK; CITY; COUNTRY; PEOPLE" after a heading.

    Raises:
      readers.DataError: if the file is missing, or a line is of another form.
    """
    cities = []
    for number, line in enumerate(_lines(path)[1:], 2):
        if not line.strip():
            continue
        parts = [part.strip() for part in line.split(";")]
        if len(parts) != 4 or not parts[3].replace(",", "").isdigit():
            raise readers.DataError(f"{path}, line {number}: {line!r:.60} is not RANK; CITY; COUNTRY; PEOPLE")
        cities.append(City(parts[1], parts[2], int(parts[3].replace(",", ""))))
    if not cities:
        raise readers.DataError(f"{path} has no city")
    return cities


def _lines(path: str) -> list[str]:
    file = pathlib.Path(path).expanduser()
    if not file.exists():
        raise readers.DataError(f"{path} is missing; see experiments.tools.fetch_data games")
    return [line for _, line in readers.read_lines(file, readers.BadRecords())]
