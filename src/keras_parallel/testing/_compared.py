"""Was enough compared to call two runs equal?"""

from keras_parallel.testing._one_step import Difference


class Compared:
    """Which tensors were compared in which steps."""

    def __init__(self):
        self._kinds: dict[str, str] = {}
        self._steps: dict[str, list[int]] = {}
        self._left_out: dict[str, list[int]] = {}
        self._not_finite: dict[str, int] = {}
        self._wrong: set[str] = set()

    def add(self, found: Difference, step: int):
        """Notes one tensor of one step, counted from 1."""
        self._kinds[found.name] = found.kind
        self._steps.setdefault(found.name, []).append(step)
        if not found.ok:
            self._wrong.add(found.name)
        elif found.is_noise or found.is_vacuous:
            self._left_out.setdefault(found.name, []).append(step)
        if found.is_vacuous:
            self._not_finite.setdefault(found.name, step)

    def left_out(self) -> tuple[str, ...]:
        """Names of tensors left out, with the steps if not in all of them."""
        return tuple(
            name
            + self._in_steps(name)
            + " (not finite)" * (name in self._not_finite)
            for name in sorted(self._left_out.keys() - self._wrong)
        )

    def gap(self) -> str | None:
        """Why too little was compared, in words; `None` if enough was."""
        if gap := self.gap_of_loss():
            return gap
        weights = [n for n, kind in self._kinds.items() if kind == "weight"]
        for names, what in ((weights, "weights"), (self._kinds, "tensors")):
            never = [name for name in names if self._never(name)]
            if 2 * len(never) > len(names):
                return (
                    f"{len(never)} of {len(names)} {what} were compared in no "
                    "step: they hold rounding noise only, or nothing finite"
                )
        return None

    def gap_of_loss(self) -> str | None:
        """Why the loss was not compared, in words; `None` if it was."""
        if gap := self.gap_after():
            return gap
        for name in self._losses():
            if self._never(name):
                return (
                    f"{name!r} was compared in no step, since one device "
                    "itself does not reproduce it"
                )
        return None

    def gap_after(self) -> str | None:
        """Says from which step on the loss is not finite, if it is not."""
        for name in self._losses():
            if name in self._not_finite:
                return (
                    f"{name!r} is not finite on one device from step "
                    f"{self._not_finite[name]} on; nothing was compared after "
                    "it"
                )
        return None

    def _losses(self):
        logs = [name for name, kind in self._kinds.items() if kind == "log"]
        return [name for name in logs if name == "loss"] or logs

    def _never(self, name):
        return self._left_out.get(name) == self._steps[name]

    def _in_steps(self, name):
        if self._never(name):
            return ""
        steps = self._left_out[name]
        return f" in step{'s' * (len(steps) > 1)} " + ", ".join(map(str, steps))
