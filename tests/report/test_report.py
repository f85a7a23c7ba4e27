"""Reports of made-up benchmarks: every number by a plain loop over the rows, files that open, partial runs told."""

import csv
import dataclasses
import itertools
import json
import math
import re
import shutil
import statistics as plain
import subprocess
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats

from scantune.cli.main import main
from scantune.errors import InputError
from scantune.evaluation.rows import SCORE_COLUMNS, ScoreRow, write_rows
from scantune.report.bench_folder import BenchFolder
from scantune.report.figures import FIGURES
from scantune.report.figures.densities import LeastGaussian, density_figure, least_gaussian
from scantune.report.render import LINES_PER_PAGE, latex, markdown
from scantune.report.scores import RUN, SiteColumn, join_scores, read_scores, structure_text
from scantune.report.statistics import smallest_p
from scantune.report.study import Study, mean_along, training_sites
from scantune.report.tables import TABLES
from scantune.report.tables.base import NO_SCORE, Cell, ReportTable, Section, p_text
from scantune.report.write import report

METHODS = ("baseline", "strong baseline", "supervised", "entropy", "ae", "foe-cnn", "foe-cnn-pca")
VARIANTS = ("foe-cnn-pca, lambda 1", "foe-cnn-pca, kde", "ae, loss", "foe-cnn-pca, guard")
SITES = {"prostate": ("RUNMC", "UCL", "HK"), "cardiac": ("CSF", "UHE"), "registration": ("HCP", "AS")}
STRUCTURES = {"prostate": ("CG", "PZ", "mean", "whole"), "cardiac": ("LV", "RV", "mean"), "registration": ("mean",)}
GAINS = {"baseline": -0.2, "supervised": 0.1, "entropy": 0.0, "ae": -0.05, "foe-cnn": 0.02, "foe-cnn-pca": 0.05}


def row(**given):
    """A score row with what is not given made up."""
    blank = dict.fromkeys(SCORE_COLUMNS, math.nan) | dict.fromkeys(
        ("session", "decision", "device", "commit", "settings", "tier", "job", "fold", "data"), ""
    )
    return ScoreRow(**(blank | {"seed": 0, "steps": 10, "structure": "mean"} | given))


def benchmark(people=6, seeds=(0,), methods=(*METHODS, *VARIANTS), seed=1):
    """Rows of three cohorts; hearts have two sessions each."""
    rng = np.random.default_rng(seed)
    rows = []
    for cohort, sites in SITES.items():
        for site, number, session, run in itertools.product(
            sites, range(people), ("ED", "ES") if cohort == "cardiac" else ("",), seeds
        ):
            level = rng.uniform(0.6, 0.8)
            for method in methods:
                gain = GAINS.get(method.split(", ")[0], 0.0) + rng.normal(0, 0.02)
                for structure in STRUCTURES[cohort]:
                    dice = round(
                        float(np.clip(level + (method != "strong baseline") * gain + rng.normal(0, 0.01), 0, 1)), 6
                    )
                    rows.append(
                        row(
                            cohort=cohort,
                            site=site,
                            subject=f"{cohort}_{site}_test-{number + 1:03d}",
                            session=session,
                            method=method,
                            seed=run,
                            structure=structure,
                            dice=dice,
                            energy_before=0.5,
                            energy_after=0.1,
                            seconds=1.0 + number,
                            decision="unsolved" if rng.random() < 0.2 else "adapted",
                            tier="tier 1",
                        )
                    )
    return rows


SCORED = {"prostate": "whole", "cardiac": "mean", "registration": "mean"}


def of(rows, site, method):
    """Rows of a method at a site by the structure that counts."""
    return [r for r in rows if r.site == site and r.method == method and r.structure == SCORED[r.cohort]]


def mean_dice(rows, site, method):
    people = {}
    for one in of(rows, site, method):
        people.setdefault(one.subject, []).append(one.dice)
    return plain.fmean(plain.fmean(values) for values in people.values())


def changes(rows, site, method, against="strong baseline"):
    """Change of every person, by a loop."""
    before = {(r.subject, r.session, r.seed): r.dice for r in of(rows, site, against)}
    people = {}
    for one in of(rows, site, method):
        people.setdefault(one.subject, []).append(one.dice - before[one.subject, one.session, one.seed])
    return [plain.fmean(values) for values in people.values()]


def sign_flip_p(values):
    observed = abs(math.fsum(values))
    patterns = list(itertools.product((1, -1), repeat=len(values)))
    extreme = sum(
        abs(math.fsum(s * v for s, v in zip(signs, values, strict=True))) >= observed - 1e-12 for signs in patterns
    )
    return extreme / len(patterns)


@pytest.fixture(scope="module")
def rows():
    return benchmark()


@pytest.fixture(scope="module")
def study(rows, tmp_path_factory):
    folder = tmp_path_factory.mktemp("bench")
    write_rows(folder / "rows.csv", rows)
    return Study.of(read_scores(folder))


def cells(table):
    """Cells by label and column; sections do not matter, as labels are unique."""
    return {
        (label, column): cell
        for section in table.sections
        for label, found in section.rows
        for column, cell in zip(table.head[1:], found, strict=True)
    }


class TestReading:
    def test_columns_keep_tiers_apart_and_cohorts_in_the_papers_order(self, tmp_path):
        told = [("cardiac", "tier 1"), ("prostate", "tier 1"), ("prostate", "tier 2")]
        write_rows(
            tmp_path / "rows.csv",
            [row(cohort=c, tier=t, site="X", subject="anna", method="source", dice=0.5) for c, t in told],
        )
        scores = read_scores(tmp_path)
        assert scores.columns == [
            SiteColumn("prostate", "tier 1", "X"),
            SiteColumn("cardiac", "tier 1", "X"),
            SiteColumn("prostate", "tier 2", "X"),
        ]

    def test_without_a_mean_the_structures_of_a_scan_are_averaged(self, tmp_path):
        text = "cohort,site,subject,method,seed,structure,dice\n"
        text += "brain,X,anna,source,0,GM,0.4\nbrain,X,anna,source,0,WM,0.8\nbrain,X,anna,source,0,CSF,\n"
        (tmp_path / "scores.csv").write_text(text)
        scores = read_scores(tmp_path / "scores.csv")
        assert list(scores.frame["dice"]) == pytest.approx([0.6])
        assert scores.structures == {"brain": ("GM", "WM", "CSF")}
        assert structure_text(scores.structures["brain"]) == "mean of GM, WM, CSF"

    def test_a_structure_can_be_chosen(self, rows, tmp_path):
        write_rows(tmp_path / "rows.csv", rows)
        chosen = read_scores(tmp_path, "CG")
        assert {*chosen.frame["cohort"]} == {"prostate"}
        assert sorted(chosen.frame["dice"]) == sorted(r.dice for r in rows if r.structure == "CG")

    def test_scans_of_a_person_are_told_from_their_names_where_there_is_no_session(self, tmp_path):
        text = "cohort,site,subject,method,seed,structure,dice\n"
        for name in ("sub-12Ses1", "sub-12Ses2", "heart_X_test-001_ED", "heart_X_test-001_ES", "eve", "eve"):
            text += f"spine,X,{name},source,0,GM,0.5\n"
        (tmp_path / "scores.csv").write_text(text)
        runs = list(read_scores(tmp_path / "scores.csv").frame[RUN].itertuples(index=False, name=None))
        assert [run[0] for run in runs] == ["sub-12", "sub-12", *["heart_X_test-001"] * 2, "eve", "eve"]
        assert len(set(runs)) == 6

    def test_real_and_simulated_people_are_told_apart(self, tmp_path):
        write_rows(
            tmp_path / "rows.csv",
            [
                row(cohort="spine", site="A", subject="pat-001", method="source", dice=0.5, data="simulated"),
                row(cohort="spine", site="B", subject="sub-10062", method="source", dice=0.5, data="real"),
                row(cohort="spine", site="C", subject="spine_C_test-001", method="source", dice=0.5),
                row(cohort="spine", site="D", subject="sub-1", method="source", dice=0.5),
                row(cohort="spine", site="E", subject="sub-1", method="source", dice=0.5, data="real"),
                row(cohort="spine", site="E", subject="sub-2", method="source", dice=0.5, data="simulated"),
            ],
        )
        kinds = ["simulated", "real", "simulated", "not recorded whether real", "simulated and real"]
        assert list(read_scores(tmp_path).data.values()) == kinds

    @pytest.mark.parametrize("dice", ["1.7", "-0.4", "7e99", "inf"])
    def test_a_dice_outside_its_range_is_refused(self, dice, tmp_path):
        (tmp_path / "scores.csv").write_text(f"cohort,site,subject,method,seed,structure,dice\nb,X,a,s,0,GM,{dice}\n")
        with pytest.raises(InputError, match="line 2: dice must be from 0 to 1"):
            read_scores(tmp_path / "scores.csv")

    def test_training_sites_are_those_of_the_simulated_cohorts(self):
        from scantune.simulate import COHORTS

        assert {name: cohort.source for name, cohort in COHORTS.items()} == training_sites()

    @pytest.mark.parametrize(
        ("text", "told"),
        [
            ("subject,method\nanna,source\n", "has no cohort"),
            ("cohort,site,subject,method,seed,structure,dice\n", "no rows yet"),
            ("cohort,site,subject,method,seed,structure,dice\nb,X,anna,s,0,GM,good\n", "line 2: dice must be a number"),
            (
                "cohort,site,subject,session,method,seed,structure,dice\n" + "b,X,anna,,s,0,GM,0.5\n" * 2,
                "two rows for GM of anna",
            ),
        ],
    )
    def test_what_is_not_a_score_file_is_told_in_a_sentence(self, text, told, tmp_path):
        (tmp_path / "scores.csv").write_text(text)
        with pytest.raises(InputError, match=told):
            read_scores(tmp_path / "scores.csv")

    def test_an_unknown_structure_or_method_names_those_there_are(self, tmp_path):
        write_rows(tmp_path / "rows.csv", [row(cohort="b", site="X", subject="anna", method="dae", dice=0.5)])
        with pytest.raises(InputError, match="no structure 'GM'. It has: mean"):
            read_scores(tmp_path, "GM")
        with pytest.raises(InputError, match="no method 'strong baseline' to compare with. Available: dae"):
            Study.of(read_scores(tmp_path))


class TestTables:
    def test_the_papers_table_has_its_layout(self, study):
        table = TABLES["methods"](study)
        assert table.head == ("method", "UCL", "HK", "UHE")
        assert table.groups == (("prostate, tier 1 (simulated)", 2), ("cardiac, tier 1 (simulated)", 1))
        layout = [(section.title, [label for label, _ in section.rows]) for section in table.sections]
        assert layout == [
            ("Supervised learning at the training site", ["baseline"]),
            ("Domain generalisation", ["strong baseline"]),
            ("Adaptation to each scan", ["entropy", "ae", "foe-cnn", "foe-cnn-pca"]),
            ("Transfer learning with labels of the test site", ["supervised"]),
            ("People", ["number", "smallest p"]),
        ]

    @pytest.mark.parametrize("name", ["methods", "in-domain", "registration"])
    def test_every_dice_mark_and_bold_by_a_plain_loop(self, name, study, rows):
        found = cells(TABLES[name](study))
        adaptations = ["entropy", "ae", "foe-cnn", "foe-cnn-pca"]
        for (method, site), cell in found.items():
            if method == "number":
                assert cell.text == "6"
            elif method == "smallest p":
                assert cell.text == f"{2 / 2**6:.2g}"
            else:
                assert cell.text == f"{mean_dice(rows, site, method):.3f}"
                best = max(f"{mean_dice(rows, site, one):.3f}" for one in adaptations)
                assert cell.bold == (method in adaptations and cell.text == best)
                assert cell.mark == (expected_mark(rows, site, method, 4) if method in adaptations else "")
        marks = {cell.mark for cell in found.values()}
        assert name == "in-domain" or marks >= {"", "better"}

    def test_with_eight_people_the_corrected_level_can_be_reached(self, tmp_path):
        rows = benchmark(people=8, methods=METHODS)
        write_rows(tmp_path / "rows.csv", rows)
        found = cells(TABLES["methods"](Study.of(read_scores(tmp_path))))
        marks = {key: cell.mark for key, cell in found.items() if cell.mark}
        assert set(marks.values()) >= {"surely better", "surely worse"}
        assert all(mark == expected_mark(rows, site, method, 4) for (method, site), mark in marks.items())

    def test_the_caption_tells_both_baselines_at_the_training_sites(self, study, rows):
        caption = " ".join(TABLES["methods"](study).caption)
        for method in ("baseline", "strong baseline"):
            told = ", ".join(f"{site} {mean_dice(rows, site, method):.3f}" for site in ("RUNMC", "CSF"))
            assert f"At the training sites, {method}: {told}." in caption
        assert "p below 0.05/4" in caption

    def test_a_method_that_the_paper_does_not_compare_leaves_its_correction_alone(self, tmp_path):
        plain, more = ("foe-cnn", "foe-cnn-pca"), ("foe-cnn", "foe-cnn-pca", "batchnorm")
        rows = [
            row(cohort="spine", site="UCL", subject=f"p{n}", method=m, dice=0.5, structure="mean")
            for n in range(3)
            for m in ("strong baseline", *more)
        ]
        write_rows(tmp_path / "rows.csv", rows)
        study = Study.of(read_scores(tmp_path))
        columns = study.columns()
        assert study.adaptations(columns) == ["batchnorm", *plain]
        assert [study.comparisons_in(columns, method) for method in ("", *more)] == [2, 2, 2, 3]

    def test_lambda_and_density_tables_by_a_plain_loop(self, study, rows):
        weights, forms = cells(TABLES["lambda"](study)), cells(TABLES["density"](study))
        named = {"lambda = 0": "foe-cnn", "lambda = 0.1": "foe-cnn-pca", "lambda = 1": "foe-cnn-pca, lambda 1"}
        site_names = [site for sites in SITES.values() for site in sites]
        for label, method in named.items():
            for site in site_names:
                assert weights[label, site].text == f"{mean_dice(rows, site, method):.3f}"
                best = max(mean_dice(rows, site, one) for one in named.values())
                assert weights[label, site].bold == (weights[label, site].text == f"{best:.3f}")
        for label, method in {"Gaussian": "foe-cnn-pca", "KDE": "foe-cnn-pca, kde"}.items():
            for site in site_names:
                assert forms[label, site].text == f"{mean_dice(rows, site, method):.3f}"

    def test_variants_stand_beside_their_methods(self, study, rows):
        found = cells(TABLES["variants"](study))
        compared = len({"foe-cnn-pca", "ae", *VARIANTS})
        for method in ("ae", "ae, loss", "foe-cnn-pca, guard"):
            for site in ("RUNMC", "HK", "UHE", "AS"):
                assert found[method, site].text == f"{mean_dice(rows, site, method):.3f}"
                assert found[method, site].mark == expected_mark(rows, site, method, compared)

    def test_every_number_of_the_harm_table_by_a_plain_loop(self, study, rows):
        table = TABLES["harm"](study)
        assert [section.title for section in table.sections] == [f"{cohort}, tier 1" for cohort in SITES]
        for section, (cohort, sites) in zip(table.sections, SITES.items(), strict=True):
            assert [label for label, _ in section.rows] == ["entropy", "ae", "foe-cnn", "foe-cnn-pca", *VARIANTS]
            for method, (people, scans, mean, worst_site, worst_scan, worse, rolled, seconds) in section.rows:
                here = [r for site in sites for r in of(rows, site, method)]
                before = {(r.subject, r.session): r.dice for site in sites for r in of(rows, site, "strong baseline")}
                single = [r.dice - before[r.subject, r.session] for r in here]
                everyone = [change for site in sites for change in changes(rows, site, method)]
                fallen = sum(change < 0 for change in everyone)
                assert people.text == str(6 * len(sites))
                assert scans.text == str(len(here)) == str(6 * len(sites) * (2 if cohort == "cardiac" else 1))
                assert number(mean) == pytest.approx(plain.fmean(everyone), abs=5.1e-4)
                worst = min(plain.fmean(changes(rows, site, method)) for site in sites)
                assert number(worst_site) == pytest.approx(worst, abs=5.1e-4)
                assert number(worst_scan) == pytest.approx(min(single), abs=5.1e-4)
                assert worse.text == f"{fallen} ({fallen / len(everyone):.0%})"
                assert rolled.text == f"{sum(r.decision == 'unsolved' for r in here)} of {len(here)}"
                assert number(seconds) == plain.median(r.seconds for r in here)

    def test_every_test_by_enumeration(self, study, rows):
        table = TABLES["tests"](study)
        tested = {label: found for section in table.sections for label, found in section.rows}
        assert len(tested) == sum(map(len, SITES.values())) * (len(METHODS) + len(VARIANTS) - 1)
        for label, (people, mean, interval, p, corrected, smallest, worse) in tested.items():
            site, method = label.split(", ", 1)
            values = changes(rows, site, method)
            exact = sign_flip_p(values)
            fallen = sum(value < 0 for value in values)
            assert people.text == "6"
            assert number(mean) == pytest.approx(plain.fmean(values), abs=5.1e-4)
            assert float(p.text) == pytest.approx(exact, rel=0.05)
            count = 4 if method in ("entropy", "ae", "foe-cnn", "foe-cnn-pca") else None
            assert corrected.text == (NO_SCORE if count is None else f"{min(1, count * exact):.2g}")
            assert smallest.text == "0.031"
            assert worse.text == f"{fallen} ({fallen / 6:.0%})"
            low, high = (float(end) for end in interval.text.split(" to "))
            assert min(values) - 1e-3 <= low <= plain.fmean(values) + 1e-3 <= high + 2e-3 <= max(values) + 4e-3

    def test_four_training_runs_are_averaged_before_the_test(self, tmp_path):
        rows = benchmark(people=6, seeds=(0, 1, 2, 3), methods=("strong baseline", "foe-cnn"))
        write_rows(tmp_path / "rows.csv", rows)
        study = Study.of(read_scores(tmp_path))
        comparison = study.comparisons[SiteColumn("prostate", "tier 1", "UCL"), "foe-cnn"]
        assert comparison.people == 6
        assert comparison.p == pytest.approx(sign_flip_p(changes(rows, "UCL", "foe-cnn")))

    def test_what_is_not_finished_is_labelled_and_does_not_compete(self, rows, tmp_path):
        lucky = max((r for r in of(rows, "UCL", "foe-cnn-pca")), key=lambda r: r.dice).subject
        kept = [r for r in rows if not (r.site == "UCL" and r.method == "foe-cnn-pca" and r.subject != lucky)]
        kept = [r for r in kept if not (r.site == "HK" and r.method == "ae")]
        write_rows(tmp_path / "rows.csv", kept)
        table = TABLES["methods"](Study.of(read_scores(tmp_path)))
        found = cells(table)
        assert (found["foe-cnn-pca", "UCL"].note, found["foe-cnn-pca", "UCL"].bold) == ("1 of 6", False)
        assert found["ae", "HK"].text == NO_SCORE
        assert found["foe-cnn", "UCL"].note == ""
        assert any("not finished" in sentence for sentence in table.caption)

    def test_people_whom_adaptation_left_alone_are_no_evidence(self, tmp_path):
        rows = [
            row(cohort="b", site="X", subject=f"p{n}", method=method, dice=0.5 + 0.1 * (method == "dae" and n < 3))
            for n in range(8)
            for method in ("source", "dae")
        ]
        write_rows(tmp_path / "rows.csv", rows)
        (comparison,) = Study.of(read_scores(tmp_path)).comparisons.values()
        assert (comparison.people, comparison.changed) == (8, 3)
        assert comparison.p == comparison.smallest_p == 0.25


def expected_mark(rows, site, method, comparisons):
    values = changes(rows, site, method)
    p, better = sign_flip_p(values), plain.fmean(values) > 0
    if p >= 0.05:
        return ""
    return ("surely " if p < 0.05 / comparisons else "") + ("better" if better else "worse")


def number(cell):
    return float(cell.text)


@pytest.fixture(scope="module")
def traced(tmp_path_factory):
    """A bench folder of autoencoder variants with traces: losses fall, and Dice follows one of them."""
    folder = tmp_path_factory.mktemp("traced")
    rows, rng = [], np.random.default_rng(3)
    for site, person, method in itertools.product(
        ("UCL", "HK"), range(3), ("strong baseline", "ae", "ae, optimization")
    ):
        job = f"{site}{person}{method.replace(', ', '-')}"
        subject = f"prostate_{site}_test-{person + 1:03d}"
        rows.append(
            row(cohort="prostate", site=site, subject=subject, method=method, structure="whole", dice=0.7, job=job)
        )
        if method == "strong baseline":
            continue
        trace = []
        for step in range(101):
            told = {"step": step, "objective": 2.0 - step / 100, "xn": 1.0 - step / 200, "y": 0.5 + step / 300}
            if step in (0, 10, 50, 100):
                told["dice"] = round(0.5 + step / 1000 + float(rng.normal(0, 1e-3)), 6)
            if method == "ae, optimization":
                told["f1"] = float(rng.normal())
            trace.append({**told, "cnn": 0.4 / (1 + step), "valid": True})
        (folder / "jobs" / job).mkdir(parents=True)
        (folder / "jobs" / job / "trace.json").write_text(json.dumps(trace))
    write_rows(folder / "rows.csv", rows)
    return folder


def noted(folder, method, site, step, name="dice"):
    found = []
    for file in (folder / "jobs").glob(f"{site}?{method.replace(', ', '-')}/trace.json"):
        found += [told[name] for told in json.loads(file.read_text(encoding="utf-8")) if told["step"] == step]
    return plain.fmean(found)


class TestTraces:
    def test_the_autoencoder_table_shows_epochs_by_a_plain_loop(self, traced):
        table = TABLES["ae-variants"](Study.of(read_scores(traced), jobs=[traced / "jobs"]))
        assert [section.title for section in table.sections] == ["", "ae", "ae, optimization"]
        for section in table.sections[1:]:
            assert [label for label, _ in section.rows] == ["epoch 0", "epoch 10", "epoch 100"]
            for label, found in section.rows:
                for site, cell in zip(("UCL", "HK"), found, strict=True):
                    assert cell.text == f"{noted(traced, section.title, site, int(label.split()[1])):.3f}"

    def test_an_autoencoder_run_that_is_still_to_come_is_told(self, traced, tmp_path):
        shutil.copytree(traced / "jobs", tmp_path / "jobs")
        shutil.rmtree(tmp_path / "jobs" / "UCL0ae")
        table = TABLES["ae-variants"](Study.of(read_scores(traced), jobs=[tmp_path / "jobs"]))
        (_, (ucl, hk)), *_ = table.sections[1].rows
        assert (ucl.note, hk.note) == ("2 of 3", "")
        assert any("not finished" in sentence for sentence in table.caption)

    def test_the_loss_that_falls_as_dice_rises_is_told_from_the_one_that_does_not(self, traced):
        found = cells(TABLES["ae-losses"](Study.of(read_scores(traced), jobs=[traced / "jobs"])))
        assert found["ae", "xn"].text == "-1.00"
        assert found["ae", "y"].text == "+1.00"
        assert found["ae", "f1"].text == NO_SCORE
        expected = []
        for file in (traced / "jobs").glob("*optimization/trace.json"):
            told = [one for one in json.loads(file.read_text(encoding="utf-8")) if "dice" in one]
            expected.append(stats.spearmanr([one["f1"] for one in told], [one["dice"] for one in told]).statistic)
        assert found["ae, optimization", "f1"].text == f"{plain.fmean(expected):+.2f}"
        assert found["ae, optimization", "f1"].note == "6 people"

    def test_means_along_the_way_are_taken_where_all_runs_have_them(self):
        one = pd.DataFrame({"step": [0.0, 1.0, 2.0], "dice": [0.2, np.nan, 0.6]})
        other = pd.DataFrame({"step": [0.0, 1.0], "dice": [0.4, 0.5]})
        traces = {("anna", "", "", "0"): one, ("ben", "", "", "0"): other}
        assert mean_along(traces, "dice") == pytest.approx({0: 0.3})
        assert mean_along(traces, "cnn") == {}

    def test_figures_draw_these_means(self, traced):
        study = Study.of(read_scores(traced), jobs=[traced / "jobs"])
        (figure,) = FIGURES["along"](study).values()
        titles = [panel.get_title() for panel in figure.axes]
        dice = figure.axes[titles.index("ae")].lines[0]
        assert dice.get_xdata() == pytest.approx([0, 10, 50, 100])
        expected = [noted(traced, "ae", "UCL", step) for step in (0, 10, 50, 100)]
        assert dice.get_ydata() == pytest.approx(expected)
        (losses,) = FIGURES["ae-losses"](study).values()
        falling = losses.axes[0].lines[1]
        assert falling.get_ydata() == pytest.approx([1 - step / 200 for step in range(101)])

    def test_dice_by_structure_is_that_of_the_structures_that_count(self, tmp_path):
        text = "cohort,site,subject,session,method,seed,structure,dice,job\n"
        for method, structure in itertools.product(("source", "ae"), ("CG", "PZ")):
            text += f"prostate,UCL,anna,,{method},0,{structure},0.5,{method}\n"
        (tmp_path / "rows.csv").write_text(text)
        told = [
            {"step": 0, "dice": 0.9, "dices": {"CG": 0.2, "PZ": 0.4, "whole": 0.9}},
            {"step": 1},
            {"step": 2, "dice": 0.9, "dices": {"CG": 0.6}},
        ]
        (tmp_path / "jobs" / "ae").mkdir(parents=True)
        (tmp_path / "jobs" / "ae" / "trace.json").write_text(json.dumps(told))
        for structure, expected in ((None, {0: 0.3, 2: 0.6}), ("PZ", {0: 0.4})):
            study = Study.of(read_scores(tmp_path, structure), jobs=[tmp_path / "jobs"])
            (column,) = study.scores.columns
            assert mean_along(study.traces(column, "ae"), "dice") == pytest.approx(expected)

    def test_a_broken_trace_is_told_in_a_sentence(self, traced, tmp_path):
        (tmp_path / "jobs" / "UCL0ae").mkdir(parents=True)
        (tmp_path / "jobs" / "UCL0ae" / "trace.json").write_text('[{"step": 0')
        study = Study.of(read_scores(traced), jobs=[tmp_path / "jobs"])
        with pytest.raises(InputError, match="must hold the trace of a run"):
            TABLES["ae-variants"](study)


class TestFigures:
    def test_lines_differ_by_more_than_colour_and_panels_share_their_scales(self, traced):
        study = Study.of(read_scores(traced), jobs=[traced / "jobs"])
        (figure,) = FIGURES["along"](study).values()
        panels = [panel for panel in figure.axes if panel.axison]
        looks = {(line.get_marker(), line.get_linestyle()) for line in panels[0].lines}
        assert len(looks) == len(panels[0].lines) == 2
        assert len({panel.get_xlim() for panel in panels}) == 1
        assert [panel.get_title() for panel in panels] == ["ae", ""]
        (losses,) = FIGURES["ae-losses"](study).values()
        named = [handle.get_label() for handle in losses.legends[0].legend_handles]
        assert named == ["Dice", "loss xn", "loss f1", "loss y"]
        assert len({line.get_marker() for line in losses.axes[1].lines}) == 4

    def test_many_sites_and_methods_are_all_drawn_and_no_panel_is_lost(self, tmp_path):
        methods = ("entropy", "dae", "ae", "foe-cnn", "foe-cnn-pca")
        rows = []
        for number, method in itertools.product(range(8), ("strong baseline", *methods)):
            job = f"{number}{method}"
            rows.append(row(cohort="hips", site=f"S{number}", subject="ann", method=method, dice=0.5, job=job))
            (tmp_path / "jobs" / job).mkdir(parents=True)
            told = [{"step": step, "dice": 0.5, "cnn": 0.1 * step} for step in range(3)]
            (tmp_path / "jobs" / job / "trace.json").write_text(json.dumps(told if method in methods else []))
        write_rows(tmp_path / "rows.csv", rows)
        (figure,) = FIGURES["along"](Study.of(read_scores(tmp_path), jobs=[tmp_path / "jobs"])).values()
        panels = [panel for panel in figure.axes if panel.axison]
        assert [panel.get_title() for panel in panels if panel.get_title()] == list(methods)
        assert [len(panel.lines) for panel in panels] == [8] * 10
        looks = {(line.get_color(), line.get_marker(), line.get_linestyle()) for line in panels[0].lines}
        assert len(looks) == 8

    def test_every_person_is_drawn_where_the_scores_are(self, study, rows):
        figure = FIGURES["people"](study)["prostate, tier 1"]
        panel = next(panel for panel in figure.axes if panel.get_title() == "UCL, n = 6")
        bars = [segment[0, 1] for segment in panel.collections[0].get_segments()]
        drawn = sorted([*bars, *(float(y) for line in panel.lines for y in line.get_ydata())])
        expected = sorted(r.dice for method in METHODS for r in of(rows, "UCL", method))
        assert drawn == pytest.approx(expected)

    def test_changes_are_drawn_with_mean_and_every_person(self, study, rows):
        figure = FIGURES["changes"](study)["cardiac, tier 1"]
        panel = next(panel for panel in figure.axes if panel.get_title() == "UHE, n = 6")
        strokes, interval, mean = panel.lines[:3]
        assert sorted(strokes.get_xdata()) == pytest.approx(sorted(changes(rows, "UHE", "entropy")))
        assert mean.get_xdata() == pytest.approx([plain.fmean(changes(rows, "UHE", "entropy"))])
        assert interval.get_xdata()[0] <= mean.get_xdata()[0] <= interval.get_xdata()[1]


class TestDensities:
    def test_the_least_gaussian_channel_and_its_divergence_by_a_plain_sum_of_kernels(self):
        generator = torch.Generator().manual_seed(0)
        modes = torch.randint(0, 2, (2, 1, 24, 24), generator=generator).float()
        volume = modes + 0.1 * torch.randn(modes.shape, generator=generator)
        network = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3, padding=1, bias=False), torch.nn.Conv2d(2, 2, 1))
        with torch.no_grad():
            network[0].weight.zero_()
            network[0].weight[0, 0] = 1 / 9  # a mean of nine is nearly Gaussian, ...
            network[0].weight[1, 0, 1, 1] = 2.0  # ... the two modes themselves are not
            features = network[0](volume)[:, 1].flatten().double().numpy()
        (found,) = least_gaussian(network, volume).values()
        assert found.channel == 1
        standard = (features - features.mean()) / features.std()
        kernels = np.sqrt(10 / np.pi) * np.exp(-10 * (found.points[:, None] - standard) ** 2)
        kde, gaussian = kernels.mean(1) + 1e-5, stats.norm.pdf(found.points)
        assert found.kde == pytest.approx(kde, abs=6e-3)
        assert found.gaussian == pytest.approx(gaussian)
        assert found.divergence == pytest.approx(float((kde * np.log(kde / gaussian)).sum() * 0.1), rel=0.02)
        assert found.divergence > 3 * found.typical > 0

    def test_the_figure_has_a_panel_per_layer(self):
        points = np.linspace(-5, 5, 11)
        one = LeastGaussian(3, 0.5, 0.1, points, stats.norm.pdf(points, 1), stats.norm.pdf(points))
        figure = density_figure({f"layer{n}": one for n in range(7)}, "a scan")
        shown = [panel for panel in figure.axes if panel.get_visible()]
        assert len(shown) == 7
        assert shown[0].get_title() == "l = 1, c = 3\nKL 0.50 (median 0.10)"


class TestTypesetting:
    def test_markdown_has_one_cell_per_column_in_every_line(self, study):
        for build in TABLES.values():
            table = build(study)
            if table is not None:
                lines = [line for line in markdown(table).splitlines() if line.startswith("|")]
                assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines} == {len(table.head) + 1}

    def test_marks_bold_and_notes_in_both_forms(self, study):
        table = TABLES["methods"](study)
        section = table.sections[0]
        cell = dataclasses.replace(section.rows[0][1][0], text="0.5", bold=True, mark="surely worse", note="1 of 2")
        changed = dataclasses.replace(section, rows=(("a_b|c & 50%", (cell, *section.rows[0][1][1:])),))
        made = dataclasses.replace(table, sections=(changed,))
        assert r"| a_b\|c & 50% | **0.5**▼ (1 of 2) |" in markdown(made)
        assert r"a\_b\textbar{}c \& 50\% & \textbf{0.5}$^\blacktriangledown$ (1 of 2) &" in latex("methods", made)

    def test_latex_is_balanced_escaped_and_as_wide_as_it_says(self, study):
        for name, build in TABLES.items():
            table = build(study)
            if table is None:
                continue
            text = latex(name, table)
            require_latex(text)
            for line in text.splitlines():
                if line.endswith(r"\\"):
                    spans = [int(found) for found in re.findall(r"\\multicolumn\{(\d+)\}", line)]
                    width = len(re.findall(r"(?<!\\)&", line)) + 1 + sum(spans) - len(spans)
                    assert width == len(table.head), line

    def test_a_long_table_is_continued_and_loses_no_row(self):
        sizes = {"a": 3, "b": 80, "": 19, "c": 34}
        made = ReportTable(
            "Long",
            ("row", "value"),
            tuple(
                Section(title, tuple((f"{title}{n}", (Cell(str(n)),)) for n in range(size)))
                for title, size in sizes.items()
            ),
        )
        text = latex("long", made)
        require_latex(text)
        parts = text.split(r"\begin{table}")[1:]
        rows = [re.findall(r"(\w+) & (\d+) \\\\", part) for part in parts]
        titles = [re.findall(r"\\textit\{(\w)\}", part) for part in parts]
        assert list(itertools.chain(*rows)) == [
            (f"{title}{n}", str(n)) for title, size in sizes.items() for n in range(size)
        ]
        assert max(len(found) + len(told) for found, told in zip(rows, titles, strict=True)) <= LINES_PER_PAGE
        assert titles == [["a"], ["b"], ["b"], ["b"], ["c"], ["c"]]  # 3; 33; 33; 14, and 19 without a title; 33; 1
        assert text.count(r"\label{tab:long}") == 1
        assert text.count("Long (continued).") == text.count(r"\addtocounter{table}{-1}") == len(parts) - 1

    def test_signs_are_signs_and_powers_of_ten_are_typeset(self):
        cells = tuple(map(Cell, ("-0.010 to +0.020", "3e-5", "1 (50%)", "2024-05")))
        text = latex("t", ReportTable("T", ("x", "a", "b", "c", "d"), (Section("", (("foe-cnn--2 [x]", cells),)),)))
        assert r"foe-cnn-{}-2 {[}x] & $-$0.010 to $+$0.020 & $3\cdot10^{-5}$ & 1 (50\%) & 2024-05 \\" in text

    @pytest.mark.skipif(shutil.which("pdflatex") is None, reason="needs a LaTeX")
    def test_every_table_compiles_and_fits_its_page(self, traced, rows, tmp_path):
        odd = {"cohort": "[b]", "site": "*50% & |x|_{y}^~\\", "subject": "ann", "tier": "a--b\n``c''"}
        names = ("strong baseline", "[m#1] <i>", "[m#1] <i>, Jörg's -1")
        write_rows(tmp_path / "rows.csv", [*rows, *(row(**odd, method=name, dice=0.5) for name in names)])
        made = report([tmp_path, traced], tmp_path / "out")
        assert made.tables.keys() == TABLES.keys()
        words = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "report.tex"]
        log = subprocess.run(words, cwd=tmp_path / "out", check=False, capture_output=True, text=True).stdout
        assert "Output written on report.pdf" in log, log
        assert not re.findall(r"Overfull|Float too large|Missing character|undefined", log)


def require_latex(text):
    """Braces and environments close in order, and no special character stands unescaped."""
    open_environments = []
    for kind, name in re.findall(r"\\(begin|end)\{([a-z]+)\}", text):
        if kind == "begin":
            open_environments.append(name)
        else:
            assert open_environments.pop() == name
    assert not open_environments
    bare = re.sub(r"\\[\\{}&%$#_]", "", text)
    depth = 0
    for character in bare:
        depth += {"{": 1, "}": -1}.get(character, 0)
        assert depth >= 0
    assert depth == 0
    assert bare.count("$") % 2 == 0
    outside_mathematics = re.sub(r"\$[^$]*\$", "", bare)
    text_alone = re.sub(r"\\(label|input|resizebox)\{[^}]*\}", "", outside_mathematics)
    assert not re.search(r"[_^#<>]", text_alone)
    assert text.isascii()


class TestReport:
    def test_a_bench_folder_becomes_tables_figures_and_a_page(self, traced, rows, tmp_path):
        write_rows(tmp_path / "bench" / "rows.csv", rows)
        made = report([tmp_path / "bench", traced], tmp_path / "out")
        page = made.page.read_text(encoding="utf-8")
        for name in ("methods", "in-domain", "registration", "lambda", "density", "ae-variants", "harm", "tests"):
            assert (tmp_path / "out" / "tables" / f"{name}.md").is_file()
            assert made.tables[name].title in page
            assert f"\\input{{tables/{name}}}" in (tmp_path / "out" / "report.tex").read_text(encoding="utf-8")
        require_latex((tmp_path / "out" / "report.tex").read_text(encoding="utf-8"))
        pictures = re.findall(r"\]\((figures/[^)]+\.png)\)", page)
        assert len(pictures) == len(made.figures) > 5
        for picture in pictures:
            assert (tmp_path / "out" / picture).read_bytes().startswith(b"\x89PNG")
            assert "<svg" in (tmp_path / "out" / picture).with_suffix(".svg").read_text(encoding="utf-8")

    def test_comparisons_are_written_with_all_digits(self, rows, tmp_path):
        write_rows(tmp_path / "rows.csv", [r for r in rows if r.site == "UCL"])
        report([tmp_path])
        with (tmp_path / "report" / "comparisons.csv").open() as file:
            told = {(one["site"], one["method"]): one for one in csv.DictReader(file)}
        one = told["UCL", "foe-cnn-pca"]
        values = changes(rows, "UCL", "foe-cnn-pca")
        assert float(one["mean"]) == pytest.approx(plain.fmean(values), abs=1e-15)
        assert float(one["p"]) == pytest.approx(sign_flip_p(values))
        assert (one["people"], one["against"], one["tier"]) == ("6", "strong baseline", "tier 1")

    def test_the_page_says_what_is_simulated_unfinished_and_how_small_p_can_be(self, rows, tmp_path):
        real = [
            row(cohort="scgm", site="UCL", subject=f"sub-{n}", method=m, dice=0.5, data="real")
            for n in range(3)
            for m in METHODS
        ]
        kept = [r for r in rows if not (r.site == "AS" and r.method == "ae" and r.subject.endswith("1"))]
        write_rows(tmp_path / "rows.csv", [*kept, *real])
        page = report([tmp_path]).page.read_text(encoding="utf-8")
        assert "**Simulated** people, not patients: prostate (RUNMC, UCL, HK), cardiac (CSF, UHE)" in page
        assert "Real people: scgm (UCL)." in page
        assert "**Not finished**, and labelled in the tables: ae at AS (5 of 6 runs)." in page
        assert "0.25 with 3 (the smallest site), 0.031 with 6 (the largest)" in page
        assert "With fewer than 6 people no p-value can be below 0.05" in page
        assert "tier 1: prostate" in page

    def test_the_experiment_names_the_structure(self, rows, tmp_path):
        write_rows(tmp_path / "rows.csv", rows)
        (tmp_path / "experiment.toml").write_text('[experiment]\nmethods = ["source"]\nscore = "PZ"\n')
        made = report([tmp_path])
        assert made.study.scores.structures == {"prostate": ("PZ",)}

    def test_two_files_may_share_runs_but_not_disagree(self, rows, tmp_path):
        write_rows(tmp_path / "a.csv", rows)
        write_rows(tmp_path / "b.csv", [r for r in rows if r.method == "strong baseline"])
        tables = [read_scores(tmp_path / name) for name in ("a.csv", "b.csv")]
        assert join_scores(tables).frame.equals(tables[0].frame)
        write_rows(tmp_path / "b.csv", [dataclasses.replace(rows[3], dice=0.123)])
        with pytest.raises(InputError, match="Two of the files score baseline on prostate_RUNMC_test-001"):
            join_scores([tables[0], read_scores(tmp_path / "b.csv")])
        with pytest.raises(InputError, match="different structures of prostate: the whole organ, and PZ"):
            join_scores([tables[0], read_scores(tmp_path / "a.csv", "PZ")])

    def test_what_an_experiment_wants_and_has_not_begun_is_told(self, rows, tmp_path):
        write_rows(tmp_path / "rows.csv", [r for r in rows if r.cohort == "registration"])
        told = '[data]\ndataset = "oasis"\n[experiment]\nmethods = ["ae", "dae"]\nseeds = [0, 1]\n'
        (tmp_path / "experiment.toml").write_text(told)
        (tmp_path / "failed").mkdir()
        (tmp_path / "failed" / "one.txt").write_text("why")
        plan = BenchFolder.read(tmp_path)
        assert plan.training == (("oasis", "OASIS"),)
        assert plan.missing("x", read_scores(tmp_path)) == [
            "**Not begun** in x: dae.",
            "**Not begun** in x: training runs with seed 1.",
            "Jobs that failed in x: 1; `failed/` says why.",
        ]

    def test_an_experiment_names_the_training_site_of_its_data(self, tmp_path):
        write_rows(
            tmp_path / "rows.csv", [row(cohort="c", site=s, subject="a", method="source", dice=0.5) for s in "AB"]
        )
        (tmp_path / "experiment.toml").write_text('[data]\ndataset = "c"\nsite = "B"\n[experiment]\n')
        study = Study.of(read_scores(tmp_path), training=dict(BenchFolder.read(tmp_path).training))
        assert [column.site for column in study.columns(training=True)] == ["B"]

    def test_scores_of_scantune_evaluate_without_cohort_and_site_will_do(self, tmp_path):
        text = "cohort,site,subject,method,seed,structure,dice,hd95\n"
        for number, (method, gain) in itertools.product(range(3), (("source", 0.0), ("foe-cnn-pca", 0.02))):
            text += f",,scan{number},{method},0,1,{0.5 + 0.1 * number + gain},3.0\n"
        (tmp_path / "scores.csv").write_text(text)
        made = report([tmp_path / "scores.csv"])
        found = cells(made.tables["methods"])
        assert [found[method, "all"].text for method in ("source", "foe-cnn-pca")] == ["0.600", "0.620"]
        (comparison,) = made.study.comparisons.values()
        assert (comparison.people, comparison.p) == (3, 0.25)

    def test_odd_names_neither_break_files_nor_tables(self, tmp_path):
        odd = {"cohort": "a/b: c", "site": "50% & |x|_{y}", "subject": "ann/../a"}
        write_rows(tmp_path / "rows.csv", [row(**odd, method=name, dice=0.5) for name in ("source", "m#1 <i>")])
        made = report([tmp_path])
        for file in (tmp_path / "report" / "tables").glob("*.tex"):
            require_latex(file.read_text(encoding="utf-8"))
        assert r"50% & \|x\|_{y}" in (tmp_path / "report" / "tables" / "methods.md").read_text(encoding="utf-8")
        assert {file.parent.name for file in made.figures} == {"figures"}
        assert all(file.with_suffix(".png").is_file() for file in made.figures)

    def test_the_same_rows_give_the_same_bytes(self, rows, tmp_path):
        write_rows(
            tmp_path / "scores.csv", [r for r in rows if r.site == "UCL" and not r.method.startswith("foe-cnn-")]
        )
        files = []
        for name in ("one", "two"):
            report([tmp_path / "scores.csv"], tmp_path / name)
            files.append({f.relative_to(tmp_path / name): f.read_bytes() for f in (tmp_path / name).rglob("*.*")})
        assert files[0] == files[1] and len(files[0]) > 10

    def test_a_single_method_can_be_reported_already(self, rows, tmp_path):
        write_rows(tmp_path / "rows.csv", [r for r in rows if r.method == "strong baseline"][:3])
        made = report([tmp_path])
        assert set(made.tables) == {"in-domain"}

    def test_five_thousand_rows_take_less_than_ten_seconds(self, tmp_path):
        rows = benchmark(people=12) + [dataclasses.replace(r, tier="tier 2") for r in benchmark(people=6, seed=2)]
        assert len(rows) >= 5000
        write_rows(tmp_path / "rows.csv", rows)
        started = time.process_time()  # of this process alone, as other tests run beside it
        report([tmp_path])
        assert time.process_time() - started < 10


class TestCommand:
    def test_says_where_the_report_is(self, rows, tmp_path, capsys):
        write_rows(tmp_path / "scores.csv", [r for r in rows if r.cohort == "registration"])
        assert main(["report", str(tmp_path / "scores.csv")]) == 0
        told = " ".join(capsys.readouterr().out.split())
        assert "rows:" in told and "report.md" in told
        assert (tmp_path / "scores-report" / "tables" / "registration.tex").is_file()

    @pytest.mark.parametrize(
        ("words", "told"),
        [
            (["nowhere"], "nowhere does not exist"),
            (["one.csv", "two.csv"], "needs --out"),
            (["one.csv", "--model", "brain"], "needs --model and --scan"),
        ],
    )
    def test_mistakes_are_told_in_a_sentence(self, words, told, capsys):
        assert main(["report", *words]) == 2
        assert told in capsys.readouterr().err


def test_the_page_about_reports_names_every_table_figure_and_smallest_p():
    page = (Path(__file__).parents[2] / "docs" / "report.md").read_text(encoding="utf-8")
    for name in (*TABLES, *FIGURES, "densities"):
        assert re.search(rf"`{name}(-COHORT)?`", page), name
    told = re.findall(r"^\| (\d+) \| (\S+) \| (yes|no) \| (yes|no) \|$", page, re.MULTILINE)
    assert len(told) == 6
    for people, p, level, corrected in told:
        assert p == p_text(smallest_p(int(people)))
        assert [level, corrected] == ["yes" if smallest_p(int(people)) < alpha else "no" for alpha in (0.05, 0.01)]
