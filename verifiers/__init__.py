"""Verifiers: what turns a completion into a verdict.

What lives here
    base.py      the protocol `Verifier`: `name`, `version`, `digest()`, `check_task(task)`, `verify(task, completion)`
    verdict.py   `Verdict` (pass or fail, a reward in [0, 1], evidence) and `NoVerdict` (the machinery broke)
    errors.py    what is raised: `InvalidTask`, `InvalidConfig`, `UnknownVerifier`
    answers.py   `exact-answer`: integers, decimals and simple fractions, compared exactly
    registry.py  names to classes, through the entry-point group `posttrain.verifiers`
    testing.py   the conformance kit that every verifier passes

The main flow
    verifier = registry.create("exact-answer", {"extract": "last-number"})
    verifier.verify({"prompt": "4-1-7=", "answer": "-4"}, "<think>3-7</think>-4")  →  Verdict("pass", 1.0, …)

Three rules hold everywhere. A verdict is about the answer: a fault of the machinery is a `NoVerdict`, which is retried and
masked and never scored 0. A task that cannot be judged (no gold answer) raises `InvalidTask`; it is nobody's pass and
nobody's failure. And a completion is hostile input: whatever text it is, `verify` neither raises nor hangs.

A verifier of your own: write a class that fits `base.Verifier` and takes its configuration as keyword strings, declare it

    [project.entry-points."posttrain.verifiers"]
    my-verifier = "my_package:MyVerifier"

and let a test class inherit `testing.VerifierConformance`. A suite then names it: `verifier: my-verifier`.

May import: the standard library and `ledger`. Never `executors`, `assets` or torch.
"""
