"""How one optimizer variable is laid on the devices."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class SlotLayout:
    """Which part of an optimizer variable each device holds.

    Args:
        shape: Shape of the variable.
        dim: The dim that is split into parts of one size, in device order.
            `None` when every device holds the whole variable.
        part: Shape of what each device holds.
    """

    shape: tuple[int, ...]
    dim: int | None
    part: tuple[int, ...]

    @property
    def parts(self) -> int:
        """Into how many parts the variable is split."""
        if self.dim is None:
            return 1
        return self.shape[self.dim] // self.part[self.dim]


def lay_out_slot(
    shape: tuple[int, ...], num_devices: int, shard: bool
) -> SlotLayout:
    """Decides how an optimizer variable is laid on `num_devices` devices.

    Split is the largest dim that the number of devices divides, the first of
    those of one size. A variable without one is whole on every device:
    nothing is padded or flattened, so that every part is a plain slice.

    Args:
        shape: Shape of the variable.
        num_devices: Number of devices.
        shard: Whether variables are split at all.
    """
    sizes = [n if n % num_devices == 0 else 0 for n in shape]
    if not shard or num_devices == 1 or not any(sizes):
        return SlotLayout(shape, None, shape)
    dim = sizes.index(max(sizes))
    part = shape[dim] // num_devices
    return SlotLayout(shape, dim, (*shape[:dim], part, *shape[dim + 1 :]))
