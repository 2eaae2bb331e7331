"""The commands that this package adds to `posttrain`: runs, evaluation, serving. A module is loaded when it is used."""

from __future__ import annotations

from ledger.cli.command import Command

COMMANDS: tuple[Command, ...] = (
    Command(
        "run",
        "executors.cli.run:run",
        "Run a stage: from the ledger when it is there, else attach, resume or start.",
        "posttrain run sft.yaml\nposttrain run sft.yaml --rerun --json",
    ),
    Command(
        "resume",
        "executors.cli.run:resume",
        "Go on with a run from its last checkpoint, or follow it while it runs.",
        "posttrain resume r-0123456789abcdef",
    ),
    Command(
        "stop",
        "executors.cli.run:stop",
        "Stop a running run; what it saved is kept.",
        "posttrain stop r-0123456789abcdef --grace 30",
    ),
    Command(
        "logs",
        "executors.cli.logs:logs",
        "What a run's process printed.",
        "posttrain logs r-0123456789abcdef -f",
    ),
    Command(
        "eval",
        "executors.cli.evaluate:evaluate",
        "Measure a model on a held-out suite.",
        "posttrain eval demo-base --suite arithmetic-heldout\nposttrain eval r-0123456789abcdef:400 --suite arithmetic-heldout",
    ),
    Command("serve", "executors.cli.serve:serve", "Serve a stage's promoted model, audit and stop it."),
    Command(
        "rollback",
        "executors.cli.serve:rollback_command",
        "Serve the model before the live one again.",
        'posttrain rollback production --reason "worse on long sums"',
    ),
)
