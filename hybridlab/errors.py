"""Errors that end a command, each with its exit code."""


class UserError(Exception):
    """A mistake in the user's input: one sentence that says what, where and what to write instead. Exit code 2."""


class Interrupted(BaseException):
    """Ctrl-C or SIGTERM; the current step was completed and saved before. Exit code 1."""


class RunFailed(Exception):
    """A run that failed although its input was valid (a loss that is not finite, a cell of a table). Exit code 1."""
