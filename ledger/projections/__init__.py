"""Answers that are folded from the log and can be thrown away at any time.

`runs` folds the streams of runs into a table, in the core. `views` says in SQL what the tables of `posttrain sql` are, and
`database` keeps them in a DuckDB file that follows the log by position (extra `sql`); only raw events and edges are copied,
everything else is a view over them, so a file that followed the log is always equal to one that was built anew.
"""
