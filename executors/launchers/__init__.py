"""Where a child is started. `base` is the protocol; `local` starts it on this machine under a supervisor.

A launcher owns a directory per attempt and leaves the truth in it: `launch.json`, `plan.json`, `pid`, `log`, `rc`. It never
reads the ledger. `supervisor` is a program of its own that uses the standard library only.
"""
