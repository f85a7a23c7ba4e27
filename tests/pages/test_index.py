"""The index: its columns, cells and counts."""

from dataclasses import replace

from scantune.pages import IndexRow
from scantune.pages.index import index_page
from tests.page_cases import case_view


def test_rows_show_known_values_and_empty_columns_are_left_out():
    row = case_view("a & b", site="x").summary("a & b#1.html")
    page = index_page([row, IndexRow("", "<failed>", decision="failed", reason='it is "bad"')], "Scans <1>")
    assert 'href="a%20%26%20b%231.html"' in page
    assert "&lt;failed&gt;" in page
    assert 'title="it is &#34;bad&#34;"' in page
    assert "2 scans: 1 adapted, 1 failed." in page
    assert f">{row.dice_before:.3f}<" in page
    assert f">{row.dice_after - row.dice_before:+.3f}<" in page
    page = index_page([replace(row, dice_before=None, dice_after=None, site="")], "One")
    assert "Dice before" not in page
    assert "Site" not in page
    assert "1 scan: 1 adapted." in page
    assert "1 scan, 2 runs: 2 adapted." in index_page([row, replace(row, method="other")], "Two")
