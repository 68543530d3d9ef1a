"""Calling a method from outside, and what is left if a call breaks off: by an error, or by Ctrl-C at any moment."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from scale_cl.engine.building import Builder
from scale_cl.errors import ScaleClError, one_line, place_in


class Caller(Builder):
    """Calls what a method defines. An error says where it was raised; what is half changed is not used any more."""

    def __init__(self, method: Any, *given: Any, **more: Any) -> None:
        """As `Builder`, for this method."""
        super().__init__(type(method).__name__, *given, **more)
        self.method: Any = method
        self._is_ours = type(method).__module__.startswith("scale_cl.")  # our own errors keep their traceback
        self.broken_off = ""  # the call that began to change the learner and did not come to its end

    @contextmanager
    def calling(self, function: str) -> Iterator[None]:
        """Within the context, a function of the method is called."""
        try:
            yield
        except Exception as error:
            self.retell(error, f"in {function}")
            raise

    def retell(self, error: Exception, where: str) -> None:
        """Raise an error of a method from outside as one line; one of ours is to be raised as it is."""
        if not self._is_ours and not isinstance(error, ScaleClError):
            raise ScaleClError(f"{self.method_name} failed {where}{_raised(error, self.method)}") from error

    @contextmanager
    def modes_kept(self) -> Iterator[None]:
        """What breaks off within leaves the caller's grad mode, and networks in training mode.

        Torch's own contexts do not when Ctrl-C falls into their first lines.
        """
        graded = torch.is_grad_enabled()
        try:
            yield
        except BaseException:
            torch.set_grad_enabled(graded)
            self.restore_modes()
            raise

    @contextmanager
    def whole(self, call: str) -> Iterator[None]:
        """What happens within happens wholly; if it breaks off, the learner refuses to go on."""
        with self.modes_kept():
            self.broken_off = call
            yield
            self.broken_off = ""

    def refuse_if_broken(self) -> None:
        """ScaleClError if an earlier call broke off in the middle of a change."""
        if self.broken_off:
            raise ScaleClError(
                f"{self.broken_off} was interrupted or failed half-way, and this learner is neither as before nor as "
                "after it; load a state that was saved earlier (load_state_dict), or make a new learner"
            )

    def restore_modes(self) -> None:
        """After a call that broke off: training mode again, whatever was going on."""
        torch.clear_autocast_cache()
        self.statistics = {}
        if self.owned.network is not None:
            self.owned.network.restore_modes()


def _raised(error: Exception, method: object) -> str:
    """Where in the method's file something was raised, and what: " (ewc.py, line 12): TypeError: bad operand"."""
    file = getattr(sys.modules.get(type(method).__module__), "__file__", None)
    return f"{place_in(file, error)}: {one_line(error)}"
