"""How README and documentation read: the length of their sentences, and phrases that the project does not use.

python scripts/prose.py             a table of pages, and every phrase to replace with its place
python scripts/prose.py docs/*.md   the same for some files

The exit code is 1 if a page of `SHORT` has a median of more than 18 words, or if a phrase was found.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parents[1]

MOST_WORDS = 18
"""The longest median sentence of a page that everybody reads."""

SHORT = ("README.md", "docs/index.md", "docs/tutorials/*.md")
"""The pages that everybody reads."""

READ = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "docs/**/*.md", "results/*.md", "src/scantune/**/*.py")
READ = (*READ, "src/scantune/pages/templates/*", "src/scantune/pages/assets/*.js", ".github/**/*.yml")
"""All that users and contributors read."""

PHRASES = {
    r"\btells\b|\btold\b|\btell (?:of|why|what|where|so)\b": "say, report, show, describe; or: distinguish",
    "where that is": "if it is ...",
    "where a layer may mind": "if a layer is not thread-safe",
    "said a word yet": "has reported ready",
    r"of unknown make\b": "of an unknown type",
    "less careful, on other people": "we relaxed the guard, tuning on held-out subjects",
    r"\bmanieth\b": "every n-th",
    "whoever": "subjects that ...",
    "moves nobody else": "does not change the split of the others",
    r"\bstabler\b": "more stable",
    "make a left hand": "are left-handed",
    r"\bagrees to\b": "has a Dice of ... with",
    r"(?<!\w)It was\"": "Reading",
    r"\"One only\"|\bOne only:": "In one volume",
    r"\b(?<![\d.,-])1 slices\b": "1 slice",
    "what came of it": "results",
    "as they lie": "as they are",
    "tells about a command": "describes a command",
    "as in the paper, `?foe-cnn-pca`? leads": "in the paper the denoising autoencoder leads",
    r"0\.026 is gained": "that mean is of one scan",
    "lesions still gain nothing": "the gain on lesions was not reproduced",
    r"0\.80 \(cardiac, registration\) to 1\.00": "leaves out lesions, 0.48",
    "10 steps at 1e-3": "preset fast ignores the learning rate",
    "none the worse": "still complete",
    "by the same ear": "in the same style",
    "whatever came out": "regardless of the result",
    "has no eyes": "does not look at the picture",
    r"\bmend the\b": "correct the, repair the",
    r"\babsurdly\b": "implausibly",
}
"""Phrases by a regular expression, in which a space stands for any white space, and what to write instead."""

OLD_DECISIONS = {
    r"\brolled back\b|\brolls? (?:\w+ ){0,4}back\b": "unsolved: the source prediction stands",
    r"\*?\b(?:Kept|Skipped)\*?:": "Adapted, Left alone",
}
"""Decisions of version 0.1, which no page of the documentation uses for what happens today."""


def prose_of(markdown: str) -> str:
    """The running text of a page: no code, tables, headings, pictures or HTML; links become their words."""
    text = re.sub(r"^(```|~~~).*?^\1", "", markdown, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r"^(?: {4}|[#|<!=]|---).*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    return re.sub(r"`[^`]*`", "code", text)


def sentences_of(markdown: str) -> list[str]:
    """The sentences of a page, of three words or more. Paragraphs and items of lists end one, too."""
    parts = re.split(r"\n\s*\n|\n\s*(?:[-*]|\d+\.) ", prose_of(markdown))
    split = [sentence for part in parts for sentence in re.split(r"(?<=[.!?])[)*\"]*\s+(?=[A-Z(*\"\d]|code\b)", part)]
    return [sentence for sentence in map(str.strip, split) if len(sentence.split()) > 2]


def median_words(markdown: str) -> float:
    """The median number of words of a page's sentences."""
    return median(len(sentence.split()) for sentence in sentences_of(markdown))


def phrases_in(text: str, phrases: dict[str, str]) -> Iterator[tuple[int, str, str]]:
    """Line, words and advice of every phrase in a text."""
    for pattern, advice in phrases.items():
        for match in re.finditer(pattern.replace(" ", r"\s+"), text, re.IGNORECASE):
            yield text.count("\n", 0, match.start()) + 1, " ".join(match[0].split()), advice


def found_in(path: Path) -> list[str]:
    """A line for every phrase of a file that should be replaced."""
    name = path.relative_to(ROOT).as_posix()
    text = path.read_text(encoding="utf-8")
    found = list(phrases_in(text, PHRASES))
    if name == "README.md" or name.startswith("docs/"):
        found += phrases_in(without_version_0_1(text), OLD_DECISIONS)
    return [f"{name}:{line}: {words!r}: {advice}" for line, words, advice in sorted(found)]


def without_version_0_1(text: str) -> str:
    """A text without the words of paragraphs that name version 0.1; its lines keep their numbers."""
    parts = re.split(r"(\n\s*\n)", text)
    return "".join("\n" * part.count("\n") if re.search(r"[Vv]ersion 0\.1\b", part) else part for part in parts)


def files_of(patterns: tuple[str, ...]) -> list[Path]:
    """The files that patterns match, each once, in order."""
    return sorted({path for pattern in patterns for path in ROOT.glob(pattern) if path.is_file()})


def main(words: list[str]) -> int:
    """Print the measures and the findings of some files, or of all."""
    paths = [Path(word).resolve() for word in words] or files_of(READ)
    short = files_of(SHORT)
    long = False
    for path in paths:
        if path.suffix == ".md" and sentences_of(path.read_text(encoding="utf-8")):
            words_each = median_words(path.read_text(encoding="utf-8"))
            too_long = path in short and words_each > MOST_WORDS
            long |= too_long
            print(f"{words_each:5.1f} words  {path.relative_to(ROOT)}{'  too long' if too_long else ''}")
    found = [line for path in paths for line in found_in(path)]
    print("\n".join(found))
    return int(long or bool(found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
