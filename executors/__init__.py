"""The work: runs as child processes, what they report, and how that becomes events.

The main flow is `runs.materialise_run`, top to bottom:

    stage file ──stage.resolve_stage──▶ RunSpec ──executor.plan──▶ LaunchPlan ──launcher──▶ child process
    ledger ◀──recording.RunRecorder── messages ◀──pipe.read_messages── pipe.jsonl ◀──pipe.PipeWriter── child

What lives here:

    base         the plugin protocol, and a base class that leaves an executor two methods to write
    plans        what a run pins (`RunSpec`) and what a launch needs (`LaunchPlan`)
    pipe         the file that a child reports through; standard library only, may be copied anywhere
    launchers/   where a child is started: `local` starts it under a supervisor that outlives its parent
    runs         attach, resume or start, then follow to the end; `recording` writes the events, each once
    stage        the stage file and how names in it become digests; `environment` says which code and packages run
    registry     executors by name, loaded when asked for
    fake         a deterministic executor without dependencies; `testing` is the conformance kit it passes
    trainers/ serving/ evaluation/   the executors that do real work
    cli/         `posttrain run`, `resume`, `logs` and the commands of the packages above

May import `ledger`, never `verifiers` or `assets`. Importing this package loads nothing: torch, transformers and web
servers are loaded by the child process or the plugin that needs them.
"""
