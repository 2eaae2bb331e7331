"""Where events are kept: one protocol (`base`), one schema, two stores, one conformance kit (`ledger.testing`).

A store knows rows, not rules: `ledger.log` decides what may be appended and hashes it; a store makes a batch durable or
leaves no trace of it, and answers reads as of any position.
"""
