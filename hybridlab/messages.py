"""Lines about what a program does: `say` gives them to whoever listens, which by default is nobody.

    with heard_by(print_line):      # the command line, or a function of the Python API that is not quiet
        with titled("data"):
            say("tokenizer bpe:896")    # prints "data: tokenizer bpe:896"

So no function has to be handed a place to write to only in order to hand it on.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, wraps
from typing import ParamSpec, TypeVar

Listener = Callable[[str], None]
Given = ParamSpec("Given")
Result = TypeVar("Result")


def silent(text: str) -> None:
    """A listener that drops every line."""


def print_line(text: str) -> None:
    """A listener that prints to standard error, since standard output is for results."""
    if sys.stderr is not None:  # else it would go to standard output
        print(text, file=sys.stderr, flush=True)


_listener: Listener = silent
_on_screen = False
"""Of the process, as standard error is: also of its threads."""


def say(text: str) -> None:
    """Tell a line about progress, or a warning."""
    _listener(text)


def on_screen() -> bool:
    """Whether the lines are printed, so that bars are wanted beside them."""
    return _on_screen


@contextmanager
def heard_by(listener: Listener) -> Iterator[None]:
    """A context in which a listener gets the lines."""
    with _told_to(listener, listener is print_line):
        yield


@contextmanager
def titled(title: str) -> Iterator[None]:
    """A context in which lines begin with a title."""
    outer = _listener
    with _told_to(lambda text: outer(f"{title}: {text}"), _on_screen):
        yield


@contextmanager
def without_repeats() -> Iterator[None]:
    """A context in which a line that was told before is not told again."""
    with _told_to(cache(_listener), _on_screen):
        yield


@contextmanager
def _told_to(listener: Listener, screen: bool) -> Iterator[None]:
    global _listener, _on_screen
    before = _listener, _on_screen
    _listener, _on_screen = listener, screen
    try:
        yield
    finally:
        _listener, _on_screen = before


def aloud(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """A function of the Python API whose lines and bars are shown, unless it is called with quiet=True."""

    @wraps(function)
    def call(*arguments: Given.args, **options: Given.kwargs) -> Result:
        with heard_by(silent if options.get("quiet") else print_line):
            return function(*arguments, **options)

    return call
