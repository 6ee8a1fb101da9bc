"""Tensors, as a plan speaks of them."""

import dataclasses
import math
import re


@dataclasses.dataclass(frozen=True)
class Tensor:
    """What flows in a model, without its numbers.

    Args:
        name: What tells it from others: the call that makes it.
        shape: Its dims; `None` for one that the data decides, as the rows.
        dtype: The name of its dtype.
    """

    name: str
    shape: tuple[int | None, ...]
    dtype: str

    def bytes(self, rows: int) -> int | None:
        """Its size for a batch of some rows, `None` if the data decides."""
        dims = (rows if n is None else n for n in self.shape[:1])
        rest = self.shape[1:]
        if None in rest:
            return None
        bits = re.search(r"\d+", self.dtype)
        entries = math.prod(dims) * math.prod(n for n in rest if n is not None)
        return entries if bits is None else -(-entries * int(bits[0]) // 8)

    @property
    def has_gradient(self) -> bool:
        return "float" in self.dtype
