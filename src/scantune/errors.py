"""The one exception of user errors: a sentence, never a traceback; and other errors told in one."""


class InputError(ValueError):
    """Something the user gave cannot be used.

    The message names the thing, what was expected, what came, and what to do next. The command line
    prints it as one line and exits with code 2.
    """


class ScanError(InputError):
    """One scan cannot be read or processed; other scans of the same run may be fine."""


def describe_error(error: Exception, what: str) -> str:
    """Tell an error in a sentence: a user error as it is, an unforeseen one with what could not be done because of it.

    Args:
        error: Any.
        what: How the sentence begins, such as `a.nii could not be read`.
    """
    if isinstance(error, InputError):
        return str(error)
    if is_out_of_memory(error):
        return f"{what}: it takes more memory than there is ({error_message(error)}). {MEMORY_ADVICE}"
    return f"{what}, for an unforeseen reason ({type(error).__name__}: {error_message(error)})."


_SHORT = ("out of memory", "can't allocate memory", "not enough memory")

MEMORY_ADVICE = "Close other programs, or use --device cpu."
"""What to do where memory is short."""


def error_message(error: Exception) -> str:
    """What an error says, in a line; torch adds where in its own code it arose, which is left out."""
    return " ".join(str(error).partition("Exception raised from")[0].split())[:300] or "no message"


def is_out_of_memory(error: Exception) -> bool:
    """Whether an error tells that memory is short; torch's on a processor is like any other of its errors."""
    words = str(error).lower()
    return isinstance(error, MemoryError) or any(sign in words for sign in _SHORT)
