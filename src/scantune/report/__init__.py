"""Reports: rows become statistics, tables, figures and pages."""
