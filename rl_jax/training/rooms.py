"""The first of many rows with room for n tokens, without looking at each of them."""


class Rooms:
    """The room left in each packed row, as a tree of maxima: the first row with room for n tokens in O(log rows)."""

    def __init__(self):
        self.width, self.count, self.tree = 1, 0, [0, 0]  # node i has children 2 i and 2 i + 1; row j is node width + j

    def first(self, size: int) -> int:
        """Index of the first row with room for `size` tokens; `count` if there is none."""
        tree, node = self.tree, 1
        if tree[1] < size:
            return self.count
        while node < self.width:
            node *= 2
            node += tree[node] < size
        return node - self.width

    def left(self, row: int) -> int:
        """The room of a row."""
        return self.tree[self.width + row]

    def put(self, row: int, room: int) -> None:
        """Sets the room of a row; row == count opens it."""
        if row == self.width:
            self._double()
        self.count = max(self.count, row + 1)
        tree, node = self.tree, self.width + row
        tree[node] = room
        while node > 1:
            node //= 2
            largest = max(tree[2 * node], tree[2 * node + 1])
            if tree[node] == largest:
                return
            tree[node] = largest

    def _double(self) -> None:
        leaves = self.tree[self.width :] + [0] * self.width
        levels = [leaves]
        while len(levels[0]) > 1:
            levels.insert(0, [max(pair) for pair in zip(levels[0][::2], levels[0][1::2], strict=True)])
        self.width, self.tree = len(leaves), [0] + sum(levels, [])
