"""The one exception of user errors: a sentence, never a traceback."""


class InputError(ValueError):
    """Something the user gave cannot be used.

    The message names the thing, what was expected, what came, and what to do next. The command line
    prints it as one line and exits with code 2.
    """


class ScanError(InputError):
    """One scan cannot be read or processed; other scans of the same run may be fine."""
