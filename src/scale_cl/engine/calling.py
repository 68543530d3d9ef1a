"""Calling a method from outside, and what is left if a call breaks off: by an error, or by Ctrl-C at any moment."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from scale_cl.engine.building import Builder
from scale_cl.engine.settings import Setup
from scale_cl.errors import FAILURES, ScaleClError, one_line, place_of


class Caller(Builder):
    """Calls what a method defines. An error says where it was raised; what is half changed is not used any more."""

    def __init__(self, method: Any, setup: Setup) -> None:
        """`method` declares what it owns to this object."""
        super().__init__(type(method).__name__, setup)
        self.method: Any = method
        self._is_ours = type(method).__module__.startswith("scale_cl.")  # our own errors keep their traceback
        self.broken_off = ""  # the call that began to change the learner and did not come to its end

    @contextmanager
    def calling(self, function: str) -> Iterator[None]:
        """Within the context, a function of the method is called."""
        try:
            yield
        except FAILURES as error:
            self.retell(error, function)
            raise

    def retell(self, error: BaseException, function: str) -> None:
        """Raise an error in a function of a method from outside as one line; one of ours is to be raised as it is."""
        if not self._is_ours and not isinstance(error, ScaleClError):
            kind = type(self.method)
            where = "its step" if function == "update" else function
            place = place_of(getattr(kind, function, None), error, kind)
            raise ScaleClError(f"{self.method_name} failed in {where}{place}: {one_line(error)}") from error

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
