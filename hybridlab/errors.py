"""The ways in which a command may end badly, each with its exit code."""


class UserError(Exception):
    """A mistake in what the user wrote: one sentence that says what, where and what to write instead. Exit code 2."""


class Interrupted(BaseException):
    """Ctrl-C or SIGTERM, after the step that it came in was finished and saved. Exit code 1."""


class RunFailed(Exception):
    """A run that was set up rightly and still failed (a loss that is not finite, a cell of a table). Exit code 1."""
