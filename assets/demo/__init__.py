"""The demo's own material: generated tasks, the base models, and the stage files that `make demo` runs.

`tasks` writes training sources and a held-out suite of arithmetic word problems; `base` makes the tiny base model, or
unpacks a real one of 135M parameters. Both are deterministic: the same seed gives the same bytes, so that a second run of
the demo finds everything in the ledger. Neither imports torch before a function that needs it is called.
"""
