"""The composition root: Dagster assets that materialise stages from the ledger.

A chain file (`chain`) names a base, a suite, a dataset recipe, candidates and the stage they may be promoted to. `steps`
holds one function for each step, the same that the command line calls; `factory` makes one asset of each step; `reflect`
turns what a step returned into what Dagster shows. `definitions` is what `dagster dev -m assets.definitions` loads, and
`demo` is the chain that `make demo` runs.

The ledger decides and Dagster mirrors: an asset body looks its answer up first, so a hit is reflected and not computed
again, and a promotion reads its gate from the ledger whatever was selected in a run.

May import: everything in this project, and dagster.
"""
