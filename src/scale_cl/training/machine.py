"""What a run needs of the machine: device, threads and precision, a description for the result, and signals."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import platform
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.connection import wait
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch

import scale_cl
from scale_cl.engine import Turns
from scale_cl.errors import ConfigError, printable
from scale_cl.learners import Compute
from scale_cl.nets.kernels import compile_ahead, convolution, norm
from scale_cl.training.config import RunSettings

_counts = Turns()  # of those who change the number of threads: what one reads, another must not be changing
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # parameters of glibc's `mallopt`
_SAME = 0.2  # seconds within which signals are one: `timeout` and other wrappers send two


# ---- device ----------------------------------------------------------------------------------------------------------
def choose_device(name: str) -> torch.device:
    """The device that `auto`, `cpu`, `cuda` or `cuda:N` means on this machine."""
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")  # one hardware queue per seed; read when CUDA starts
    if name == "auto":
        return torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    device = torch.device(name)
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise ConfigError(f"run.device: {name!r} was asked for, but no GPU is there; use cpu or auto")
        device = torch.device("cuda", device.index or 0)
        if device.index is not None and device.index >= torch.cuda.device_count():
            raise ConfigError(f"run.device: {name!r} was asked for, but there are {torch.cuda.device_count()} GPUs")
    return device


def prepare(run: RunSettings) -> torch.device:
    """Set threads and precision for the whole process; returns the device."""
    device = choose_device(run.device)
    torch.set_num_threads(run.threads)
    _keep_freed_memory()
    if device.type == "cuda":
        torch.cuda.set_device(device)
        torch.backends.cudnn.conv.fp32_precision = "ieee" if run.precision == "fp32" else "tf32"  # type: ignore[attr-defined]
        torch.backends.cuda.matmul.fp32_precision = "ieee"
        torch.backends.cudnn.benchmark = run.autotune and not run.deterministic
        torch.backends.cudnn.deterministic = run.deterministic
        if run.deterministic:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(run.deterministic)
    return device


def _keep_freed_memory() -> None:
    """Let the process keep up to 256 MB that it has freed.

    glibc returns memory at the end of the heap to the system: the gradients of every step, which the next step has to
    ask for again, page by page. Elsewhere there is no such call, and nothing happens.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(_TRIM_THRESHOLD, 256 << 20)
        mallopt(_MMAP_THRESHOLD, 32 << 20)


@contextmanager
def threads_in_use(count: int) -> Iterator[None]:
    """Within the context, torch computes with so many threads what this thread asks for; others are not concerned.

    `torch.set_num_threads` sets the number for the calling thread, and for those that use torch for the first time
    later. The latter is set back at once.
    """
    if isinstance(count, bool) or not isinstance(count, int | np.integer) or count < 1:
        raise ConfigError(f"threads is {count!r}; it must be a whole number of at least 1")
    before = torch.get_num_threads()
    if before == count:
        yield
        return
    try:
        _counts.take(_set_own_threads, int(count))
        yield
    finally:
        _counts.take(_set_own_threads, before)


def _set_own_threads(count: int) -> None:
    """Set the number for this thread, and leave that for new ones as it is, which only a new one can read."""
    known, changed = threading.Event(), threading.Event()

    def keep() -> None:
        usual = torch.get_num_threads()
        known.set()
        changed.wait()
        torch.set_num_threads(usual)

    keeper = threading.Thread(target=keep, daemon=True)
    keeper.start()
    try:
        known.wait()
        torch.set_num_threads(count)
    finally:
        changed.set()
        keeper.join()


def compile_kernels(run: RunSettings, device: torch.device) -> None:
    """Begin to compile the kernels of convolutional networks in the background."""
    if device.type == "cuda":
        makers = [norm.kernels, *([convolution.kernels] if run.direct_convolutions else [])]
        compile_ahead(*makers, device=torch.cuda.current_device())


def compute(run: RunSettings, device: torch.device) -> Compute:
    """How learners do their arithmetic on the device; the CPU records no graphs and always uses fp32."""
    on_cpu = device.type == "cpu"
    return Compute(
        precision="fp32" if on_cpu else run.precision,
        channels_last=run.channels_last,
        direct_convolutions=run.direct_convolutions,
        capture=run.capture and not on_cpu,
        on_divergence=run.on_divergence,
    )


# ---- description -----------------------------------------------------------------------------------------------------
def describe(device: torch.device, threads: int, arguments: list[str] | None = None) -> dict[str, Any]:
    """The `environment` of a result file: versions, device, revision, command; no host or user names.

    `arguments` are those of the command line, without the program.
    """
    revision, changed = _git_state(Path(scale_cl.__file__).resolve().parent)
    return {
        "scale_cl": scale_cl.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "platform": platform.platform(),
        "device": str(device),
        "device_name": device_name(device),
        "threads": threads,
        "git_revision": revision,
        "git_changed": changed,
        "command": None if arguments is None else printable(shlex.join(["scale-cl", *arguments])),
    }


def device_name(device: torch.device) -> str:
    """The model name of the GPU or processor."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return _processor_name() or platform.processor() or platform.machine()


def _processor_name() -> str | None:
    if sys.platform != "linux":
        return None
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None)


def _git_state(package: Path) -> tuple[str | None, bool | None]:
    """The commit of the checkout that the package is imported from, and whether tracked files differ; None if none."""
    top = _git(package, "rev-parse", "--show-toplevel")
    if top is None or Path(top).resolve() / "src" / package.name != package:
        return None, None  # installed, or inside someone else's repository
    revision = _git(package, "rev-parse", "--verify", "HEAD")
    if revision is None:
        return None, None
    changes = _git(package, "status", "--porcelain", "--untracked-files=no")
    return revision, None if changes is None else changes != ""


def _git(folder: Path, *arguments: str) -> str | None:
    command = ["git", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


# ---- signals ---------------------------------------------------------------------------------------------------------
@contextmanager
def stop_on_signal(*, at_once: bool = False) -> Iterator[Callable[[], bool]]:
    """A function that says whether SIGINT or SIGTERM has arrived; a second one raises KeyboardInterrupt.

    With `at_once` the first one does. There is one KeyboardInterrupt at most: later signals change nothing until the
    process ends, not even after the context, so that none of them disturbs the stop. Only the main thread receives
    signals; in other threads nothing changes.
    """
    arrived: list[float] = []

    def note(_number: int, _frame: FrameType | None) -> None:
        now = time.monotonic()
        if arrived and now - arrived[0] < _SAME:
            return
        arrived.append(now)
        if len(arrived) == (1 if at_once else 2):
            raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = {number: signal.signal(number, note) for number in _SIGNALS}
    try:
        yield lambda: bool(arrived)
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_IGN if arrived else handler)


@contextmanager
def interrupts_held() -> Iterator[Callable[[], int]]:
    """Within the context no signal raises KeyboardInterrupt: they are counted, and one is raised at the end."""
    if threading.current_thread() is not threading.main_thread():
        yield lambda: 0
        return
    held = 0
    before = {int(number): handler for number in _SIGNALS if callable(handler := signal.getsignal(number))}

    def hold(number: int, frame: FrameType | None) -> None:
        nonlocal held
        try:
            before[number](number, frame)
        except KeyboardInterrupt:
            held += 1

    try:
        for number in before:
            signal.signal(number, hold)
        yield lambda: held
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if held:
            raise KeyboardInterrupt


@contextmanager
def signals_blocked() -> Iterator[None]:
    """Processes started within the context never get these signals; a terminal sends Ctrl-C to them as well."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # it unblocks them when it starts, which the first process would make it do
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def die_with_parent() -> None:
    """In a child process of a run: exit as soon as the parent is gone, for whatever reason."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_await_end, args=(parent.sentinel,), daemon=True).start()


def _await_end(sentinel: int) -> None:
    wait([sentinel])
    os._exit(1)
