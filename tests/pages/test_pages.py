"""Pages: what is packed into them, that words cannot break them, and that charts and sentences tell the numbers."""

import base64
import gzip
import hashlib
import io
import json
import math
import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import nibabel
import numpy as np
import pytest
from jinja2 import UndefinedError
from markupsafe import escape

from scantune.evaluation.metrics import dice
from scantune.evaluation.rows import COLUMN_TYPES, ScoreRow, read_rows, write_rows
from scantune.pages import IndexRow, render, volumes
from scantune.pages.case import case_page, sentence
from scantune.pages.charts import Scale, layers_chart, trace_chart
from scantune.pages.index import index_page
from scantune.pages.slices import CHANGED, DIFFERENCES, colour_tables, middle_slice, slice_pictures
from scantune.report.scan_pages import pages_of_bench
from scantune.report.write import report
from tests.page_cases import LABELS, case_view, entry, shells, trace

NASTY = "<script>alert(1)</script> & \"quotes\" 'too' Müller 名前.nii"
VENDOR = Path(volumes.__file__).parent / "vendor"


def unpacked(text):
    """The volume of a page, read by nibabel."""
    return nibabel.Nifti1Image.from_bytes(gzip.decompress(base64.b64decode(text)))


def script(page, name):
    return re.search(rf'<script type="text/plain" id="{name}">(.*?)</script>', page, re.DOTALL)[1]


class TestVolumes:
    def test_what_is_packed_is_the_scan_turned_as_nibabel_turns_it(self):
        view = case_view()
        packed = volumes.pack(view)
        image, codes = unpacked(packed.image), np.asarray(unpacked(packed.codes).dataobj)
        assert image.get_data_dtype() == np.uint8
        assert nibabel.aff2axcodes(image.affine) == ("R", "A", "S")
        for number, labels in enumerate(view.maps.values()):
            turned = nibabel.as_closest_canonical(nibabel.Nifti1Image(labels, view.affine))
            assert np.array_equal(packed.cutout.combinations[:, number][codes], np.asarray(turned.dataobj))
            assert image.header.get_zooms() == pytest.approx(turned.header.get_zooms())
        turned = np.asarray(nibabel.as_closest_canonical(nibabel.Nifti1Image(view.image, view.affine)).dataobj)
        assert np.corrcoef(turned.ravel(), np.asarray(image.dataobj).ravel())[0, 1] > 0.99

    @pytest.mark.parametrize("limit", [1, 2**20])
    def test_codes_are_rows_that_differ_in_order_looked_up_or_sorted(self, limit, monkeypatch):
        monkeypatch.setattr(volumes, "MAX_TABLE_KEYS", limit)
        rows = np.random.default_rng(0).choice([1, 2, 5], (50, 3)).astype(np.int64)
        combinations, codes = volumes._coded(rows)
        assert np.array_equal(combinations[codes], rows)
        assert [tuple(row) for row in combinations] == sorted({(0, 0, 0), *map(tuple, rows)})

    def test_nothing_of_a_header_is_in_it_and_the_same_scan_gives_the_same_page(self):
        header = unpacked(volumes.pack(case_view()).image).header
        assert (header["descrip"], header["aux_file"], header["intent_name"]) == (b"", b"", b"")
        assert case_page(case_view()) == case_page(case_view())

    def test_a_small_structure_is_cut_out_with_its_surroundings(self):
        small = np.zeros((200, 200, 10), np.uint8)
        small[90:100, 120:126, 4:6] = 1
        view = case_view(
            image=np.random.default_rng(0).random(small.shape, np.float32),
            affine=np.diag([0.5, 1.0, 8.0, 1.0]),
            before=small,
            after=small,
            reference=None,
            labels={"cord": 1},
        )
        cutout = volumes.pack(view).cutout
        assert cutout.image.shape == (10 + 2 * 50, 6 + 2 * 25, 10)
        assert int((cutout.labels(0) == 1).sum()) == 10 * 6 * 2
        assert not cutout.whole

    def test_large_scans_are_shown_coarser_until_they_fit(self, monkeypatch):
        monkeypatch.setattr(volumes, "MAX_VOXELS", 3000)
        packed = volumes.pack(case_view())
        assert packed.cutout.image.size <= 3000
        assert packed.cutout.downsampling == (2, 2, 1)  # slices are thick already
        monkeypatch.setattr(volumes, "MAX_BYTES", 2500)
        smaller = volumes.pack(case_view())
        assert len(base64.b64decode(smaller.image)) + len(base64.b64decode(smaller.codes)) <= 2500
        assert "(the files are finer)" in case_page(case_view())

    def test_a_page_of_noise_at_full_size_is_under_5_mb(self):
        shape = (256, 256, 80)
        labels = shells(shape=shape)
        noise = np.random.default_rng(0).random(shape, np.float32)
        view = case_view(image=noise, before=labels, after=labels, reference=labels, affine=np.eye(4))
        assert len(case_page(view).encode()) < 5e6

    def test_an_empty_scan_and_many_structures_are_shown_too(self):
        nothing = np.zeros((8, 8, 4), np.uint8)
        view = case_view(before=nothing, after=nothing, reference=nothing, image=nothing.astype(float))
        assert "viewer" in case_page(view)
        rng = np.random.default_rng(0)
        many = {
            key: rng.integers(0, 40, (20, 20, 10)).astype(np.uint8) for key in ("before", "after", "reference", "image")
        }
        view = case_view(labels={f"s{n}": n for n in range(40)}, **many)
        cutout = volumes.pack(view).cutout
        assert cutout.codes.dtype == np.uint16
        for number, labels in enumerate(view.maps.values()):
            turned = nibabel.as_closest_canonical(nibabel.Nifti1Image(labels, view.affine))
            assert np.array_equal(cutout.labels(number), np.asarray(turned.dataobj))


class TestWords:
    def test_no_name_can_break_the_page(self):
        view = case_view(NASTY, site=NASTY, labels={NASTY: 1, "b": 2}, entry=entry(reason=NASTY, method=NASTY))
        page = case_page(view)
        assert "<script>alert" not in page
        assert page.count(str(escape(NASTY))) >= 4
        assert json.loads(script(page, "data"))["names"]
        assert NASTY in {name for row in json.loads(script(page, "data"))["names"] for name in row}

    def test_json_in_a_page_survives_any_string(self):
        value = {NASTY: ["</script><!--", "\u2028", 1.5]}
        embedded = render.environment().from_string("{{ value | tojson }}").render(value=value)
        assert json.loads(embedded) == value
        assert "<" not in embedded

    def test_a_template_needs_all_its_values(self):
        with pytest.raises(UndefinedError, match="title"):
            render.render("index.html")

    def test_a_link_to_any_file_name_is_an_address(self):
        assert render.link("a b#1?.html") == "a%20b%231%3F.html"

    @pytest.mark.parametrize(
        ("value", "told"),
        [
            (0.012345, "0.0123"),
            (123.456, "123"),
            (1234567.0, "1234567"),
            (0, "0"),
            (-0.5, "-0.500"),
            (math.nan, render.UNKNOWN),
        ],
    )
    def test_numbers_have_three_digits_and_no_exponent(self, value, told):
        assert render.number(value) == told

    @pytest.mark.parametrize(
        ("seconds", "told"),
        [(0.44, "0.4 s"), (59.4, "59 s"), (125, "2 min 5 s"), (None, render.UNKNOWN), (119.7, "2 min 0 s")],
    )
    def test_durations_are_told_in_words(self, seconds, told):
        assert render.duration(seconds) == told

    def test_the_decision_is_a_sentence(self):
        assert sentence("rolled back", "it strayed.") == "Rolled back: it strayed."
        assert sentence("kept", "") == "Kept."

    def test_a_rolled_back_scan_says_what_that_means(self):
        page = case_page(case_view(entry=entry(decision="rolled back", reason="it strayed.")))
        assert "Rolled back: it strayed." in page
        assert "the result is that of the network as it was trained" in page
        assert 'class="chosen"' not in page

    def test_volumes_and_scores_are_in_the_table(self):
        view = case_view()
        page = case_page(view)
        voxels = [int((labels == 1).sum()) for labels in (view.before, view.after)]
        before, after = (count * 1.5 * 1.5 * 5 / 1000 for count in voxels)
        change = 100 * (after - before) / before
        assert f"<td>{render.number(before)}</td><td>{render.number(after)}</td><td>{change:+.1f} %</td>" in page
        for name, (before, after) in view.dice.items():
            assert before == dice(view.before, view.reference, LABELS[name])
            assert f"<td>{before:.3f}</td><td>{after:.3f}</td>" in page

    def test_how_a_deformation_folds_is_told(self):
        page = case_page(case_view(entry=entry(quality={"folding": 0.001}, source_quality={"folding": 0.02})))
        assert '<th scope="row">folding before and after</th><td>0.0200, 0.00100</td>' in page

    def test_readings_stability_and_remarks_are_told(self):
        facts = {"reading_before": "shifted", "reading_after": "typical", "remarks": ["Few <slices>."]}
        page = case_page(case_view(entry=entry(**facts, guard={"stability_before": 0.9, "stability_after": 0.95})))
        assert "nats, shifted, then typical" in page
        assert '0.900 <span aria-label="to">→</span> <strong>0.950</strong>' in page
        assert "<p>Few &lt;slices&gt;.</p>" in page

    def test_without_a_reference_or_steps_less_is_shown(self):
        page = case_page(case_view(reference=None, trace=[]))
        assert "Dice" not in page
        assert "Reference" not in page
        assert "No step was taken." in page


class TestIndex:
    def test_rows_tell_what_is_known_and_columns_of_nothing_are_left_out(self):
        row = case_view("a & b", site="x").summary("a & b#1.html")
        page = index_page([row, IndexRow("", "<failed>", decision="failed", reason='it is "bad"')], "Scans <1>")
        assert 'href="a%20%26%20b%231.html"' in page
        assert "&lt;failed&gt;" in page
        assert 'title="it is &#34;bad&#34;"' in page
        assert "2 scans: 1 kept, 1 failed." in page
        assert f">{row.dice_before:.3f}<" in page
        assert f">{row.dice_after - row.dice_before:+.3f}<" in page
        page = index_page([replace(row, dice_before=None, dice_after=None, site="")], "One")
        assert "Dice before" not in page
        assert "Site" not in page
        assert "1 scan: 1 kept." in page
        assert "1 scan, 2 runs: 2 kept." in index_page([row, replace(row, method="other")], "Two")

    def test_a_benchmark_gets_an_index_and_pages_of_kept_scans(self, tmp_path):
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

    def test_the_index_of_a_benchmark_shows_what_its_rows_tell_and_names_what_is_missing(self, tmp_path):
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
        assert "1 finished run in jobs/ not shown: rows.csv does not tell of it." in notes
        assert "<li>Failed: s 4: &lt;ae&gt;, seed 0: It broke. (failed/f1.txt)</li>" in notes
        assert "Traceback" not in notes and "done since" not in notes
        assert "(failed/f2.txt)" in notes
        assert not (out / "cases" / "old.html").exists()

    def test_many_failures_are_counted(self, tmp_path):
        bench_job(tmp_path, "j1", kept=False)
        (tmp_path / "failed").mkdir()
        for number in range(25):
            (tmp_path / "failed" / f"f{number:02d}.txt").write_text(f"job {number}\nwhy\n")
        text = pages_of_bench(tmp_path, tmp_path / "out").read_text(encoding="utf-8")
        assert text.count("<li>Failed: job") == 20
        assert "<li>Failed: 5 more, in failed/.</li>" in text

    def test_a_kept_scan_without_rows_is_told_of(self, tmp_path):
        lone = bench_job(tmp_path / "bench", "j1", kept=True)
        bench_job(tmp_path / "bench", "j2", kept=False)
        (lone / "rows.csv").unlink()
        text = pages_of_bench(tmp_path / "bench", tmp_path / "out").read_text(encoding="utf-8")
        assert "1 finished run in jobs/ not shown" in text
        assert "<p>1 scan." in text

    def test_a_report_leads_to_the_pages_of_its_benchmark(self, tmp_path):
        folder = tmp_path / "my bench"
        rows = (bench_job(folder, "j1", True) / "rows.csv").read_text(encoding="utf-8")
        (folder / "rows.csv").write_text(rows)
        made = report([folder], against="foe-cnn")
        assert "[my bench](<pages/my bench/index.html>)" in made.page.read_text(encoding="utf-8")
        assert (folder / "report" / "pages" / "my bench" / "cases" / "j1.html").exists()


def bench_job(folder, name, kept):
    """A finished job of a benchmark."""
    place, view = folder / "jobs" / name, case_view()
    place.mkdir(parents=True)
    facts = {"cohort": "c", "site": "s", "subject": "p", "method": "foe-cnn", "structure": "mean", "job": name}
    kinds = {str: "", int: 0, float: 0.5}
    write_rows(
        place / "rows.csv", [ScoreRow(**{key: facts.get(key, kinds[kind]) for key, kind in COLUMN_TYPES.items()})]
    )
    record = {"scan": "p_ED", "reason": "why not.", "labels": LABELS, "decision": "kept", "facts": {"best_step": 3}}
    (place / "manifest.json").write_text(json.dumps(record))
    (place / "trace.json").write_text(json.dumps(trace()))
    if kept:
        theirs = {key: value + 4 for key, value in LABELS.items() if value}
        other = np.where(view.reference, view.reference + 4, 0)
        maps = {"image": view.image, "before": view.before, "after": view.after, "reference": other}
        np.savez(place / "case.npz", affine=view.affine, labels=np.array(json.dumps(theirs)), **maps)
    return place


class TestPictures:
    def test_differences_are_those_of_a_plain_comparison(self):
        view = case_view()
        cutout = volumes.pack(view).cutout
        table = np.array(colour_tables(view, cutout)["Differences"])
        before, after, true = (cutout.labels(n) for n in range(3))
        shown = table[cutout.codes]
        assert np.array_equal(shown == DIFFERENCES["repaired"], (before != true) & (after == true))
        assert np.array_equal(shown == DIFFERENCES["made worse"], (before == true) & (after != true))
        assert np.array_equal(shown == DIFFERENCES["still wrong"], (before != true) & (after != true))
        without = case_view(reference=None)
        cutout = volumes.pack(without).cutout
        shown = np.array(colour_tables(without, cutout)["Differences"])[cutout.codes]
        assert np.array_equal(shown == CHANGED["changed"], cutout.labels(0) != cutout.labels(1))

    def test_a_picture_is_the_slice_as_radiologists_see_it(self):
        from matplotlib.image import imread

        labels = np.zeros((30, 20, 3), np.uint8)
        labels[25:, 15:, 1] = 1  # right, anterior
        view = case_view(
            image=labels.astype(float), before=labels, after=labels, reference=None, labels={"a": 1}, affine=np.eye(4)
        )
        cutout = volumes.pack(view).cutout
        assert middle_slice(cutout, "axial") == 1
        pictures = slice_pictures(cutout, colour_tables(view, cutout), "axial", 1)
        drawn = imread(io.BytesIO(base64.b64decode(pictures["Scan"].partition(",")[2])))[..., 0]
        assert drawn[0, 0] == 1  # anterior up, the patient's right on the left
        assert drawn[-1, -1] == 0
        assert drawn.shape == (20, 30)


class TestCharts:
    def test_a_scale_puts_values_in_proportion(self):
        plain = Scale(0, 10, 100, 200)
        assert [plain(v) for v in (0, 5, 10)] == [100, 150, 200]
        steep = Scale(0.01, 1, 0, 100, logarithmic=True)
        assert steep(0.1) == pytest.approx(50)
        assert steep.ticks() == pytest.approx([0.01, 0.1, 1.0])
        assert Scale(0.05, 0.18, 0, 1, logarithmic=True).ticks() == pytest.approx([0.05, 0.07, 0.1])
        for values in ([0.3], [0, 0], [-1, 2], [1e-6, 1e6], [math.nan, 1.0]):
            scale = Scale.over(values, 0, 100)
            assert all(0 <= scale(v) <= 100 for v in values if math.isfinite(v))
            assert 1 <= len(scale.ticks()) <= 13

    def test_the_trace_is_drawn_with_levels_the_chosen_step_and_refused_ones(self):
        chart = ElementTree.fromstring(trace_chart(trace(), {"least possible": 0.01, "typical": None}, 3))
        energy = chart.find("polyline[@class='energy']").get("points").split()
        assert len(energy) == 5
        heights = [float(point.split(",")[1]) for point in energy]
        assert heights == sorted(heights)  # further down at every step
        chosen = chart.find("circle[@class='chosen']")
        assert f"{chosen.get('cx')},{chosen.get('cy')}" == energy[3]
        assert len(chart.findall("circle[@class='energy refused']")) == 1
        assert len(chart.findall("line[@class='level']")) == 1
        assert "energy from 0.180 to 0.0200" in chart.get("aria-label")

    def test_a_trace_without_energy_or_with_odd_numbers_is_drawn(self):
        rows = [{"step": n, "objective": value} for n, value in enumerate([1.0, -0.5, math.inf, 0.2])]
        chart = ElementTree.fromstring(trace_chart(rows, {"least possible": 0.01}, None))
        assert len(chart.find("polyline").get("points").split()) == 3
        assert "least possible" not in "".join(chart.itertext())

    def test_layers_move_left_where_they_came_closer(self):
        chart = ElementTree.fromstring(layers_chart({"a": 0.4, "b<": 0.1}, {"a": 0.1, "b<": 0.2}))
        better, worse = chart.find("line[@class='better']"), chart.find("line[@class='worse']")
        assert float(better.get("x2")) < float(better.get("x1"))
        assert float(worse.get("x2")) > float(worse.get("x1"))
        assert chart.get("aria-label").startswith("1 of 2 layers")


class TestVendored:
    def test_the_viewer_is_the_file_that_its_note_names(self):
        found = hashlib.sha256((VENDOR / "niivue.umd.js").read_bytes()).hexdigest()
        assert found in (VENDOR / "README.md").read_text(encoding="utf-8")
        assert "BSD 2-Clause" in (VENDOR / "LICENSE.md").read_text(encoding="utf-8")

    def test_a_page_may_load_nothing(self):
        page = case_page(case_view())
        assert "default-src 'none'" in page
        shown = re.sub(r'<script type="text/plain".*?</script>', "", page, flags=re.DOTALL)
        assert not re.findall(r"https?://|//cdn|@import", shown)
