"""Disposable answers built from the log by position: delete `projections.duckdb` and the next question makes it again.

`analytics` keeps events and edges as DuckDB tables and everything else as views over them.
"""
