"""The one exception of user errors: a sentence, never a traceback; and other errors told in one."""


class InputError(ValueError):
    """Something the user gave cannot be used.

    The message names the thing, what was expected, what came, and what to do next. The command line
    prints it as one line and exits with code 2.
    """


class ScanError(InputError):
    """One scan cannot be read or processed; other scans of the same run may be fine."""


def told(error: Exception, what: str) -> str:
    """Tell an error in a sentence: a user error as it is, an unforeseen one with what could not be done because of it.

    Args:
        error: Any.
        what: How the sentence begins, such as `a.nii could not be read`.
    """
    if isinstance(error, InputError):
        return str(error)
    message = " ".join(str(error).split())[:300] or "no message"
    if isinstance(error, MemoryError) or "out of memory" in message.lower():
        return f"{what}: it takes more memory than there is ({message}). Close other programs, or use --device cpu."
    return f"{what}, for an unforeseen reason ({type(error).__name__}: {message})."
