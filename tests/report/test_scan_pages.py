"""Pages of a benchmark: the index of its runs, pages of kept scans, and what is missing."""

import json
import re
from dataclasses import replace

import numpy as np

from scantune.evaluation.rows import COLUMN_TYPES, ScoreRow, read_rows, write_rows
from scantune.report.scan_pages import pages_of_bench
from scantune.report.write import report
from tests.page_cases import LABELS, case_view, trace


def bench_job(folder, name, kept):
    """A finished job of a benchmark."""
    place, view = folder / "jobs" / name, case_view()
    place.mkdir(parents=True)
    facts = {"cohort": "c", "site": "s", "subject": "p", "method": "foe-cnn", "structure": "mean", "job": name}
    kinds = {str: "", int: 0, float: 0.5}
    write_rows(
        place / "rows.csv", [ScoreRow(**{key: facts.get(key, kinds[kind]) for key, kind in COLUMN_TYPES.items()})]
    )
    record = {"scan": "p_ED", "reason": "why not.", "labels": LABELS, "decision": "adapted", "facts": {"best_step": 3}}
    (place / "manifest.json").write_text(json.dumps(record))
    (place / "trace.json").write_text(json.dumps(trace()))
    if kept:
        theirs = {key: value + 4 for key, value in LABELS.items() if value}
        other = np.where(view.reference, view.reference + 4, 0)
        maps = {"image": view.image, "before": view.before, "after": view.after, "reference": other}
        np.savez(place / "case.npz", affine=view.affine, labels=np.array(json.dumps(theirs)), **maps)
    return place


def test_a_benchmark_gets_an_index_and_pages_of_kept_scans(tmp_path):
    assert pages_of_bench(tmp_path / "bench", tmp_path / "none") is None
    jobs = {name: bench_job(tmp_path / "bench", name, kept) for name, kept in (("j1", True), ("j2", False))}
    index = pages_of_bench(tmp_path / "bench", tmp_path / "out")
    assert index == tmp_path / "out" / "index.html"
    text = index.read_text(encoding="utf-8")
    assert 'href="cases/j1.html"' in text
    assert "cases/j2.html" not in text
    page = tmp_path / "out" / "cases" / "j1.html"
    view = case_view()
    for name, scores in view.dice.items():  # the reference had other values of the same names
        assert f"<td>{scores[0]:.3f}</td><td>{scores[1]:.3f}</td>" in page.read_text(encoding="utf-8"), name
    written = page.stat().st_mtime_ns
    pages_of_bench(tmp_path / "bench", tmp_path / "out")
    assert page.stat().st_mtime_ns == written
    assert "Not in the table" not in text
    (jobs["j1"] / "trace.json").write_text("{")
    text = pages_of_bench(tmp_path / "bench", tmp_path / "out").read_text(encoding="utf-8")
    assert "cases/j1.html" not in text
    assert "2 runs" in text
    assert re.search(r"<li>No page: \S+trace.json must be JSON that scantune bench wrote", text)


def test_the_index_of_a_benchmark_shows_what_its_rows_tell_and_names_what_is_missing(tmp_path):
    bench, out = tmp_path / "bench", tmp_path / "out"
    for name in ("j1", "j2", "old"):
        bench_job(bench, name, kept=True)
    rows = [row for name in ("j1", "j2") for row in read_rows(bench / "jobs" / name)]
    gone = replace(rows[0], job="gone", subject="q", session="ES")
    renamed = replace(rows[1], method="foe-cnn, mine")
    write_rows(bench / "rows.csv", [rows[0], renamed, gone])
    (bench / "failed").mkdir()
    (bench / "failed" / "f1.txt").write_text("s 4: <ae>, seed 0\nIt broke.\n\nTraceback ...")
    (bench / "failed" / "j1.txt").write_text("done since\nIt broke.\n")
    (bench / "failed" / "f2.txt").write_text("")
    text = pages_of_bench(bench, out).read_text(encoding="utf-8")
    body, notes = text.split("Not in the table")
    assert set(re.findall(r'href="(cases[^"]+)"', body)) == {"cases/j1.html", "cases/j2.html"}
    assert "foe-cnn, mine, seed 0" in body
    assert "foe-cnn, mine, seed 0" in (out / "cases" / "j2.html").read_text(encoding="utf-8")
    assert "q ES" in body
    assert "1 finished run in jobs/ not shown: rows.csv does not list it." in notes
    assert "<li>Failed: s 4: &lt;ae&gt;, seed 0: It broke. (failed/f1.txt)</li>" in notes
    assert "Traceback" not in notes and "done since" not in notes
    assert "(failed/f2.txt)" in notes
    assert not (out / "cases" / "old.html").exists()


def test_many_failures_are_counted(tmp_path):
    bench_job(tmp_path, "j1", kept=False)
    (tmp_path / "failed").mkdir()
    for number in range(25):
        (tmp_path / "failed" / f"f{number:02d}.txt").write_text(f"job {number}\nwhy\n")
    text = pages_of_bench(tmp_path, tmp_path / "out").read_text(encoding="utf-8")
    assert text.count("<li>Failed: job") == 20
    assert "<li>Failed: 5 more, in failed/.</li>" in text


def test_a_kept_scan_without_rows_is_counted(tmp_path):
    lone = bench_job(tmp_path / "bench", "j1", kept=True)
    bench_job(tmp_path / "bench", "j2", kept=False)
    (lone / "rows.csv").unlink()
    text = pages_of_bench(tmp_path / "bench", tmp_path / "out").read_text(encoding="utf-8")
    assert "1 finished run in jobs/ not shown" in text
    assert "<p>1 scan." in text


def test_a_report_leads_to_the_pages_of_its_benchmark(tmp_path):
    folder = tmp_path / "my bench"
    rows = (bench_job(folder, "j1", True) / "rows.csv").read_text(encoding="utf-8")
    (folder / "rows.csv").write_text(rows)
    made = report([folder], against="foe-cnn")
    assert "[my bench](<pages/my bench/index.html>)" in made.page.read_text(encoding="utf-8")
    assert (folder / "report" / "pages" / "my bench" / "cases" / "j1.html").exists()
