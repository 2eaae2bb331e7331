"""The ledger: immutable events in an append-only, signed Merkle log, and everything that can be asked of it.

An event goes `events` → `rules` → `log` → `store`, and comes back `store` → `history` → a question (`lineage`, `which`,
`registry`, `budget`, `fsck`). Bytes live in `artifacts` under their digest. `home.Ledger` opens all of it; `cli` is the
`posttrain` command.

May import: the standard library, pydantic, sqlalchemy, typer, rich, fsspec, cryptography, pyyaml; duckdb behind the extra
`sql`. Never torch, dagster, ray or vllm, and nothing from `executors`, `verifiers` or `assets`.
"""
