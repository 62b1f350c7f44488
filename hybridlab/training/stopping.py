"""Ctrl-C and SIGTERM take effect at the end of a step, because a checkpoint can be saved only between steps.

Outside the steps, as while a trained model is measured, they end the run at once.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from hybridlab.errors import Interrupted

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopRequest:
    """A context in which the first signal only sets `requested`, to its number; a second one has its usual effect."""

    requested: int | None = None

    def __enter__(self) -> StopRequest:
        # Only the main thread may set signal handlers; in others signals keep their usual effect.
        main = threading.current_thread() is threading.main_thread()
        self._before = {number: signal.signal(number, self._request) for number in _SIGNALS if main}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _request(self, number: int, frame: FrameType | None) -> None:
        self.requested = number
        self.__exit__()


@contextmanager
def stopping_at_once(describe: Callable[[], str]) -> Iterator[None]:
    """A context that Ctrl-C and SIGTERM leave at once, as Interrupted with this description of where the run stands.

    SIGTERM keeps a handler that the program has set itself.
    """

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        raise Interrupted(describe(), number)

    main = threading.current_thread() is threading.main_thread()
    unhandled = main and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    if unhandled:
        signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(describe(), signal.SIGINT) from None
    finally:
        if unhandled:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
