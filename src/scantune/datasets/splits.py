"""Splits by place in a list of people, a published list if there is one."""

from collections.abc import Sequence
from pathlib import Path

from scantune.errors import InputError


def split_by_order(people: Sequence[str], train: int, validation: int, test: range) -> dict[str, str]:
    """Return the split of each person by their place in a list: the first for training, the next for validation.

    Args:
        people: Everyone, in the order of the split.
        train: Number of people for training.
        validation: Number of people for validation.
        test: Places, from 0, of the people for testing.

    Returns:
        The split by person, without the people in none.
    """
    places = {"train": range(train), "validation": range(train, train + validation), "test": test}
    return {person: split for split, where in places.items() for person in people[where.start : where.stop]}


def split_by_fold(people: Sequence[str], fold: int, validation: int, test: int, folds: int) -> dict[str, str]:
    """Return the split of each person in one of the paper's folds, or in all of them pooled.

    In fold 1 the last people of the list are for testing and those before them for validation. In each further fold the
    block moves towards the front by the number of test people, and continues at the end of the list once it reaches the
    front. All others are for training.

    Args:
        people: Everyone, in the published order.
        fold: Number of the fold from 1. 0 pools the folds: people of any test set are for testing, all others for
            validation.
        validation: Number of people for validation in a fold.
        test: Number of people for testing in a fold.
        folds: Number of folds.
    """
    if fold == 0:
        tested = {person for n in range(1, folds + 1) for person in _block(people, (n - 1) * test, test)}
        return {person: "test" if person in tested else "validation" for person in people}
    tested = set(_block(people, (fold - 1) * test, test))
    validated = set(_block(people, fold * test, validation))
    return {
        person: "test" if person in tested else "validation" if person in validated else "train" for person in people
    }


def require_fold(fold: int, folds: int) -> None:
    """Check the option fold.

    Raises:
        InputError: There is no such fold.
    """
    if not 0 <= fold <= folds:
        raise InputError(f"The option fold must be 1 to {folds}, or 0 for all folds pooled, but is {fold}.")


def require_people(count: int, needed: int, site: str, root: Path) -> None:
    """Check that a folder holds enough people for a split by place in the list.

    Raises:
        InputError: There are too few people.
    """
    if count < needed:
        raise InputError(
            f"The split of {site} goes by the order of names and needs {needed} people, but {root} holds {count}. "
            "Download the others, or use the data set csv or folder with a split of your own."
        )


def _block(people: Sequence[str], skipped: int, count: int) -> list[str]:
    """Return a number of people from the end of the list, after some that are skipped, going round the list."""
    return [people[-(1 + (skipped + n) % len(people))] for n in range(count)]
