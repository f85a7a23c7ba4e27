"""The page of a scan: names cannot break it, and it shows decision, volumes, scores and remarks."""

import hashlib
import json
import re
from pathlib import Path

from markupsafe import escape

from scantune.evaluation.metrics import dice
from scantune.pages import render, viewer
from scantune.pages.case import case_page, decision_sentence
from tests.page_cases import LABELS, case_view, entry

NASTY = "<script>alert(1)</script> & \"quotes\" 'too' Müller 名前.nii"


VENDOR = Path(viewer.__file__).parent / "vendor"


def script(page, name):
    return re.search(rf'<script type="text/plain" id="{name}">(.*?)</script>', page, re.DOTALL)[1]


def test_no_name_can_break_the_page():
    view = case_view(NASTY, site=NASTY, labels={NASTY: 1, "b": 2}, entry=entry(reason=NASTY, method=NASTY))
    page = case_page(view)
    assert "<script>alert" not in page
    assert page.count(str(escape(NASTY))) >= 4
    assert json.loads(script(page, "data"))["names"]
    assert NASTY in {name for row in json.loads(script(page, "data"))["names"] for name in row}


def test_the_decision_is_a_sentence():
    assert decision_sentence("unsolved", "it strayed.") == "Unsolved: it strayed."
    assert decision_sentence("adapted", "") == "Adapted."


def test_an_unsolved_scan_says_what_that_means():
    page = case_page(case_view(entry=entry(decision="unsolved", reason="it strayed.")))
    assert "Unsolved: it strayed." in page
    assert "No improvement found; original segmentation kept." in page
    assert 'class="chosen"' not in page


def test_volumes_and_scores_are_in_the_table():
    view = case_view(entry=entry(volumes_ml={}, source_volumes_ml={}))  # then the label maps are measured
    page = case_page(view)
    voxels = [int((labels == 1).sum()) for labels in (view.before, view.after)]
    before, after = (count * 1.5 * 1.5 * 5 / 1000 for count in voxels)
    change = 100 * (after - before) / before
    assert f"<td>{render.number(before)}</td><td>{render.number(after)}</td><td>{change:+.1f} %</td>" in page
    for name, (before, after) in view.dice.items():
        assert before == dice(view.before, view.reference, LABELS[name])
        assert f"<td>{before:.3f}</td><td>{after:.3f}</td>" in page


def test_the_folding_of_a_deformation_is_shown():
    page = case_page(case_view(entry=entry(quality={"folding": 0.001}, source_quality={"folding": 0.02})))
    assert '<th scope="row">folding before and after</th><td>0.0200, 0.00100</td>' in page


def test_readings_stability_and_remarks_are_shown():
    facts = {"reading_before": "shifted", "reading_after": "typical", "remarks": ["Few <slices>."]}
    page = case_page(case_view(entry=entry(**facts, guard={"stability_before": 0.9, "stability_after": 0.95})))
    assert "nats, shifted, then typical" in page
    assert '0.900 <span aria-label="to">→</span> <strong>0.950</strong>' in page
    assert "<p>Few &lt;slices&gt;.</p>" in page


def test_a_measure_that_did_not_change_is_shown_once():
    page = case_page(case_view(entry=entry(guard={"stability_before": 0.9, "stability_after": 0.9})))
    assert "<dt>Stability</dt><dd><strong>0.900</strong>" in page


def test_an_estimate_that_cannot_be_trusted_is_not_shown():
    facts = {"verdict_before": "failed", "verdict": "doubtful", "estimate": "dice", "expected_before": 0.3}
    page = case_page(case_view(entry=entry(**facts, expected=None, decision="unsolved", adapted_kept=True)))
    assert "Expected Dice" in page
    assert "failed, then doubtful (no reliable estimate)" in page


def test_without_a_reference_or_steps_less_is_shown():
    page = case_page(case_view(reference=None, trace=[]))
    assert "Dice" not in page
    assert "Reference" not in page
    assert "No step was taken." in page


def test_the_viewer_is_the_file_that_its_note_names():
    found = hashlib.sha256((VENDOR / "niivue.umd.js").read_bytes()).hexdigest()
    assert found in (VENDOR / "README.md").read_text(encoding="utf-8")
    assert "BSD 2-Clause" in (VENDOR / "LICENSE.md").read_text(encoding="utf-8")


def test_a_page_may_load_nothing():
    page = case_page(case_view())
    assert "default-src 'none'" in page
    shown = re.sub(r'<script type="text/plain".*?</script>', "", page, flags=re.DOTALL)
    assert not re.findall(r"https?://|//cdn|@import", shown)


def test_warnings_stand_above_the_figures_and_cannot_break_the_page():
    page = case_page(case_view(entry=entry(warnings=["No <GM> was found.", "Odd voxels."])))
    assert "<strong>Warning:</strong> No &lt;GM&gt; was found." in page
    assert page.index("Odd voxels.") < page.index('class="figures"')
    assert 'class="warnings"' not in case_page(case_view())


def test_a_page_names_what_was_minimised_where_there_is_no_energy():
    rows = [{"step": n, "objective": 1.0 - 0.1 * n, "valid": True} for n in range(4)]
    page = case_page(case_view(trace=rows, entry=entry(objective="unlikeness of atlas and scan")))
    assert page.count("unlikeness of atlas and scan") == 2  # axis and legend
    assert "A low energy" not in page


def test_the_page_of_an_unsolved_scan_with_an_adapted_result_does_not_say_that_the_original_was_kept():
    assert "original segmentation kept" not in case_page(case_view(entry=entry(decision="unsolved", adapted_kept=True)))
