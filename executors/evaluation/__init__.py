"""Evaluation: a model answers a held-out suite, a verifier judges, and the ledger gets a report.

What lives here
    executor.py       `EvaluationExecutor`: kind `evaluation`, one child process on one device
    worker.py         the child: reads model and suite, writes `completions.jsonl`
    suites.py         the items of a suite artifact
    verification.py   the suite's verifier, found by name, and what it says of every completion
    report.py         `evaluate`: the whole story, from a model and a suite to `EvaluationReported`

The main flow
    evaluate(ledger, model, suite)  →  run specification  →  materialise_run (worker)  →  verdicts  →  report artifact → event

The child generates and the parent judges: the process that runs a model never decides whether it is right, and the gold
answers' verifier never runs beside a model. Verifiers are found by entry point, so that nothing here imports them.
"""
