"""How the rows of one global batch are laid on the devices."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class RowLayout:
    """Which device computes how many rows of a batch.

    Args:
        rows: Rows of the global batch.
        per_device: Rows that each device computes, in device order.
        split: `True` when every device has rows of its own. `False` when the
            batch does not divide evenly: then each device computes the whole
            batch, which is exact where padding would not be.
    """

    rows: int
    per_device: tuple[int, ...]
    split: bool

    def __str__(self) -> str:
        if not self.split:
            return "computed whole on every device"
        share = self.per_device[0]
        return f"{share} row{'s' * (share > 1)} each"


def lay_out_rows(rows: int, num_devices: int) -> RowLayout:
    """Decides how `rows` rows are laid on `num_devices` devices."""
    if rows and rows % num_devices == 0:
        share = rows // num_devices
        return RowLayout(rows, (share,) * num_devices, split=True)
    return RowLayout(rows, (rows,) * num_devices, split=False)
