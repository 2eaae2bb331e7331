"""Dataset versions and held-out suites: rows with source and licence, and the wall between training and held-out items.

A recipe names sources (`recipe`); rows are read and bounded (`rows`); exact duplicates go, and what overlaps a registered
suite refuses the whole build (`overlap`); what is left is an artifact and an event (`build`). Suites are registered by
`suites`, which also looks back at the datasets that were sealed before.
"""

from ledger.datasets.build import Sealed, build_dataset, check_dataset, check_sealed, list_datasets
from ledger.datasets.suites import Registered, load_suite_file, register_suite_file

__all__ = [
    "Registered", "Sealed", "build_dataset", "check_dataset", "check_sealed", "list_datasets", "load_suite_file", "register_suite_file",
]  # fmt: skip
