"""Dataset versions and held-out suites: rows with source and licence, and the wall between training and held-out items.

A recipe names sources (`recipe`); rows are read, bounded and hashed (`rows`); exact duplicates go, and what overlaps a
registered suite (`overlap`, `checks`) refuses the whole build; what is left is an artifact and an event (`build`). Suites are
registered by `suites`, which also looks back at the versions that were sealed before: of those that hold items of the new
suite none can be an input of a run any more.
"""

from ledger.datasets.build import Sealed, build_dataset
from ledger.datasets.checks import Checked, check_dataset, check_sealed, list_datasets, sealed_rows
from ledger.datasets.recipe import Recipe, SuiteFile, load_recipe, load_suite_file
from ledger.datasets.suites import Registered, register_suite, register_suite_file

__all__ = [
    "Checked", "Recipe", "Registered", "Sealed", "SuiteFile", "build_dataset", "check_dataset", "check_sealed", "list_datasets",
    "load_recipe", "load_suite_file", "register_suite", "register_suite_file", "sealed_rows",
]  # fmt: skip
