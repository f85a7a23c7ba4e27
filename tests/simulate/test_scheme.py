"""Label schemes: what their tables may hold, and the anatomy that they describe."""

import pytest

from scantune.errors import InputError
from scantune.simulate.scheme import labelled_atlas, read_scheme
from tests.toy_cohort import SCHEME


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"must hold the one table \[labels\], with a line such as 1 = "),
        ("[labels]", r"must hold the one table \[labels\]"),
        ("[labels]\n1 = 2\n[other]", r"must hold the one table \[labels\]"),
        ("[labels", "is not a valid TOML file"),
        ("[labels]\n1 = 'WM'", "Label 1 in .* must be a table, such as 1 = .*, got 'WM'"),
        ("[labels]\n0 = { name = 'a', tissue = 'CSF' }", r"whole numbers from 1 \(0 is outside the body\), got '0'"),
        ("[labels]\nWM = { name = 'a', tissue = 'CSF' }", "got 'WM'"),
        ("[labels]\n1 = { tissue = 'CSF' }", "label 1 in .* must have the setting name"),
        ("[labels]\n1 = { name = 'a', tisue = 'CSF' }", "Unknown setting 'tisue'"),
        ("[labels]\n1 = { name = 'a', tissue = 'grey' }", "unknown tissue 'grey'. Known: CSF, spinal CSF, cortex, "),
        ("[labels]\n1 = { name = 'a', tissue = 'CSF', texture = -1 }", "texture of label 1 .* 0 or more, got -1"),
        ("[labels]\n1 = { name = 'a', tissue = 'CSF', structure = '' }", "must name at least one structure"),
        ("[labels]\n1000 = { name = 'a', tissue = 'CSF' }", "a label up to 255 for every structure"),
    ],
)
def test_wrong_schemes_are_refused(tmp_path, text, message):
    (tmp_path / "scheme.toml").write_text(text)
    with pytest.raises(InputError, match=message):
        read_scheme(tmp_path / "scheme.toml")


def test_a_scheme_says_what_each_label_is(cohort_inputs):
    scheme = read_scheme(cohort_inputs / "scheme.toml")
    assert {value: (one.tissue, one.structure, one.texture) for value, one in scheme.items()} == {
        1: ("white", "WM", 1.0),
        2: ("cortex", "GM", 1.0),
        8: ("CSF", "ventricles", 0.0),
        10: ("deep grey", "GM", 1.0),
        13: ("CSF", "", 0.0),
        14: ("brain stem", "WM", 0.5),
    }


def test_a_body_is_not_stripped_and_a_brain_is(cohort_inputs, tmp_path):
    (tmp_path / "body.toml").write_text(SCHEME.replace('"brain stem"', '"muscle"'))
    body = labelled_atlas(cohort_inputs / "maps", read_scheme(tmp_path / "body.toml"))
    brain = labelled_atlas(cohort_inputs / "maps", read_scheme(cohort_inputs / "scheme.toml"))
    assert [one.templates[0].variation.stripping is None for one in (body, brain)] == [True, False]
    assert [len(one.templates[0].swelling_at) for one in (body, brain)] == [2, 2]
    (tmp_path / "plain.toml").write_text(SCHEME.replace('"ventricles"', '"fluid"'))
    assert (
        len(labelled_atlas(cohort_inputs / "maps", read_scheme(tmp_path / "plain.toml")).templates[0].swelling_at) == 0
    )
