"""Errors that end a command, each with its exit code, and those about settings."""

import difflib


class UserError(Exception):
    """A mistake in the user's input: one sentence that says what, where and what to write instead. Exit code 2.

    try:
        hybridlab.build_model("vanila")
    except hybridlab.UserError as mistake:
        print(mistake)    # … there is no such arch; did you mean 'vanilla'?
    """


class SettingsConflict(ValueError):
    """Settings that do not fit each other.

    settings: their dotted names, relative to the model that finds it; the error gives the place of the one that was
    written last.
    """

    def __init__(self, message: str, *settings: str) -> None:
        super().__init__(message)
        self.settings = settings


_NEAR = 0.65
"""The least share of letters that a name and its nearest have in common; with less, any word of six letters is near."""


def nearest(name: str, known: list[str], otherwise: str | None = None) -> str:
    """The end of an error about an unknown name: the nearest known name; if none is near, `otherwise`, or all names."""
    near = difflib.get_close_matches(name, known, 1, _NEAR)
    return f"did you mean {near[0]!r}?" if near else otherwise or f"known: {', '.join(known)}"


def shown(value: object) -> str:
    """A value for an error: its type, with its shape or, where it is short, itself."""
    kind = type(value).__name__
    if value is None:
        return "None"
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{kind} of shape {tuple(value.shape)} and type {str(value.dtype).removeprefix('torch.')}"
    text = repr(value)
    return kind if len(text) > 50 or text.startswith("<") else f"{text} ({kind})"


def first_line(error: BaseException) -> str:
    """The first line of what another library's error says, at most 160 characters; its type, if it says nothing."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:160]


def located(origin: str, problem: object) -> str:
    """A mistake with the place where it was written, if that is known."""
    return f"{origin}: {problem}" if origin else str(problem)


class Interrupted(BaseException):
    """Ctrl-C or SIGTERM in a run that the same command continues. signal: its number; the exit code is 128 + number.

    Like KeyboardInterrupt it is no Exception, so that `except Exception` lets it pass: the same call of
    `hybridlab.train` continues the run.
    """

    def __init__(self, text: str, signal: int) -> None:
        super().__init__(text)
        self.signal = signal


class RunFailed(Exception):
    """A run that failed although its input was valid (a loss that is not finite, a cell of a table). Exit code 1.

    `hybridlab.train` raises it; the record in the run's folder then has the reason.
    """


class Diverged(RunFailed):
    """A run whose loss, or another number of a step, is not finite."""


class RankLost(RunFailed):
    """Another process of the same run has ended, or does not answer. The same command goes on with the run."""


class NoRoom(RunFailed):
    """A file could not be written because the disk is full. reason: in the words of the operating system."""

    def __init__(self, text: str, reason: str) -> None:
        super().__init__(text)
        self.reason = reason

    def __reduce__(self) -> tuple[type, tuple[str, str]]:
        """How it gets to another process."""
        return type(self), (str(self), self.reason)
