"""How a command ends: exit codes, and what is said where something is wrong."""

import sys
import unicodedata

from scantune.errors import error_message, is_out_of_memory, memory_advice

BAD_INPUT, SOME_FAILED, STOPPED, UNFORESEEN = 2, 3, 130, 1


def printable(text: str) -> str:
    """Replace characters that would steer a terminal, such as escape codes in file names, by their code."""
    return "".join(
        character if character in "\n\t" or unicodedata.category(character) != "Cc" else f"\\x{ord(character):02x}"
        for character in text
    )


def complain(sentence: str) -> None:
    """Print on standard error what is wrong."""
    print(f"scantune: error: {printable(sentence)}", file=sys.stderr)


def end_of(error: Exception) -> int:
    """Tell in a sentence of an error that nobody took care of, and return the exit code."""
    if isinstance(error, OSError) and error.filename is not None:  # a name too long, no permission, a full disk
        complain(f"{error.filename} cannot be used ({error.strerror}). Check the path, its permissions and the disk.")
        return BAD_INPUT
    if is_out_of_memory(error):
        complain(
            f"this takes more memory than there is ({error_message(error)}). Use smaller settings. "
            f"{memory_advice(error)}"
        )
        return BAD_INPUT
    complain(
        f"something unforeseen went wrong ({type(error).__name__}: {error_message(error)}). Please report it, with "
        "what is shown when the environment variable SCANTUNE_TRACEBACK is set to 1."
    )
    return UNFORESEEN
