"""Score rows survive their files, whole, with empty fields for what there is no number of."""

import csv
import math
from dataclasses import astuple, replace

import pytest

from scantune.errors import InputError
from scantune.evaluation.rows import ROWS_FILE, SCORE_COLUMNS, ScoreRow, read_rows, write_parquet, write_rows

ROW = ScoreRow(
    *("prostate", "BMC", "P1", "", "foe-cnn-pca, lambda 1", 0, "TZ", 0.1 + 0.2, 3.5, 1.25, 20.0, 21.5),
    *(0.5, 0.25, "adapted", 12, 3.5, 0.29, 812.5, "cpu", "v0.1.0-3-gabc", "0123456789abcdef", "1", "fedcba9876543210"),
)
LOST = replace(ROW, structure="PZ", dice=0.0, hd95=math.nan, asd=math.inf, energy_before=math.nan)


def same(one, other):
    pairs = zip(astuple(one), astuple(other), strict=True)
    return all(a == b or (isinstance(a, float) and not math.isfinite(a) and math.isnan(b)) for a, b in pairs)


def test_the_columns_are_those_that_scripts_rely_on():
    expected = (
        "cohort,site,subject,session,method,seed,structure,dice,hd95,asd,volume_ml,reference_ml,energy_before,"
        "energy_after,decision,steps,seconds,seconds_per_step,peak_memory_mb,device,commit,settings,tier,job,fold,data"
    )
    assert ",".join(SCORE_COLUMNS) == expected


@pytest.mark.parametrize("name", ["rows.csv", "rows.parquet"])
def test_rows_survive_their_file(tmp_path, name):
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
        assert write_parquet(tmp_path / name, [ROW, LOST])
    else:
        write_rows(tmp_path / name, [ROW, LOST])
    one, other = read_rows(tmp_path / name)
    assert same(ROW, one) and same(LOST, other)


def test_numbers_that_there_are_none_of_are_empty_fields(tmp_path):
    write_rows(tmp_path / "rows.csv", [LOST])
    cells = next(csv.DictReader((tmp_path / "rows.csv").read_text(encoding="utf-8").splitlines()))
    assert [name for name, cell in cells.items() if cell == ""] == [
        "session",
        "hd95",
        "asd",
        "energy_before",
        "fold",
        "data",
    ]


def test_a_bench_folder_stands_for_its_rows(tmp_path):
    write_rows(tmp_path / ROWS_FILE, [ROW])
    assert read_rows(tmp_path) == [ROW]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("cohort,site\na,b\n", "the column subject is missing"),
        (",".join(c for c in SCORE_COLUMNS if c != "dice") + "\n" + "0," * 22 + "0\n", "the column dice is missing"),
        (",".join(SCORE_COLUMNS) + "\na,b,c\n", "is missing, or a line is short of it"),
    ],
)
def test_other_tables_are_refused_by_the_column_they_lack(tmp_path, text, told):
    (tmp_path / "rows.csv").write_text(text)
    with pytest.raises(InputError, match=told):
        read_rows(tmp_path / "rows.csv")


def test_no_file_is_told_in_a_sentence(tmp_path):
    with pytest.raises(InputError, match="a folder that scantune bench wrote"):
        read_rows(tmp_path)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"dice": 1.7}, "dice must be from 0 to 1, or empty, but is 1.7"),
        ({"dice": -0.4}, "dice must be from 0 to 1"),
        ({"hd95": -3.0}, "hd95 must be 0 or more"),
        ({"reference_ml": -1.0}, "reference_ml must be 0 or more"),
    ],
)
def test_scores_that_cannot_be_are_refused(tmp_path, changes, told):
    write_rows(tmp_path / "rows.csv", [replace(ROW, **changes)])
    with pytest.raises(InputError, match=told):
        read_rows(tmp_path / "rows.csv")
