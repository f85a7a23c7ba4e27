"""User errors, which are a sentence and never a traceback, and the description of other errors."""


class InputError(ValueError):
    """Error in what the user gave.

    The message names the thing, what was expected, what came, and what to do next. The command line prints it as one
    line and exits with code 2.
    """

    @property
    def recorded(self) -> str:
        """Return the message for files. It leaves out what people may have written into a scan's header."""
        return str(self)


class ScanError(InputError):
    """Error of one scan that cannot be read or processed. Other scans of the same run may be fine."""


def describe_error(error: Exception, what: str) -> str:
    """Describe an error in a sentence: a user error by its message, any other by what failed and why.

    Args:
        error: The error.
        what: Start of the sentence, such as `a.nii could not be read`.
    """
    if isinstance(error, InputError):
        return str(error)
    if is_out_of_memory(error):
        return f"{what}: it takes more memory than there is ({error_message(error)}). {memory_advice(error)}"
    return f"{what}, for an unforeseen reason ({type(error).__name__}: {error_message(error)})."


_OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "not enough memory")


def memory_advice(error: Exception) -> str:
    """Return what to do if memory is short: on a GPU or, by the words of the error, anywhere else."""
    if "cuda" in str(error).lower():
        return "Close other programs on the GPU, or use --device cpu."
    return "Close other programs, or crop or resample the scan."


def error_message(error: Exception) -> str:
    """Return the message of an error in one line, without the place in torch's code that torch adds."""
    return " ".join(str(error).partition("Exception raised from")[0].split())[:300] or "no message"


def is_out_of_memory(error: Exception) -> bool:
    """Return whether an error means that memory is short. On a CPU, torch raises a RuntimeError for it."""
    words = str(error).lower()
    return isinstance(error, MemoryError) or any(sign in words for sign in _OUT_OF_MEMORY)
