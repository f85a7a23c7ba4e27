"""Readings of made-up label maps of a few pixels, counted by hand."""

import torch

from scantune.prior.label_readings import contact_shares, overlaps


def test_overlaps_of_nothing_are_no_evidence() -> None:
    empty = torch.zeros(2, 4, 4, dtype=torch.long)
    assert overlaps(empty, empty, 2) == (0.0, 0.0)


def test_contacts_are_counted_by_hand() -> None:
    labels = torch.tensor([[[0, 1, 1, 2]]])
    assert contact_shares(labels, 2).tolist() == [[0.5, 0.0, 0.5], [0.0, 1.0, 0.0]]


def test_contacts_of_a_volume_count_faces_within_it_alone() -> None:
    labels = torch.zeros(1, 3, 3, 3, dtype=torch.long)
    labels[0, 1, 1, 1] = 1
    assert contact_shares(labels, 1).tolist() == [[1.0, 0.0]]
    two = torch.stack([torch.zeros(3, 3), torch.ones(3, 3)]).long()
    assert contact_shares(two, 1).tolist() == [[0.0, 0.0]]
