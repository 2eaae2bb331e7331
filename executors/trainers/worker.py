"""The child of the `fsdp` executor: `python -m executors.trainers.worker`, started once; it starts its other ranks itself.

What the user must mend ends in one `failed` message and exit code 2; what another attempt may mend in `failed` with
`retryable`; the death of a rank in exit code 75, which says that the attempt was lost and nothing about the run.
"""

from __future__ import annotations

import sys
import traceback
from typing import Any

from executors.pipe import PipeWriter, output_directory, read_plan
from executors.trainers.ranks import LOST_RANK_EXIT, Peers, Rank, end_with_parent
from ledger.errors import InfrastructureError, PosttrainError

MODULE = "executors.trainers.worker"


def main() -> int:
    """Train as POSTTRAIN_PLAN says; the exit code."""
    plan, out = read_plan(), output_directory()
    rank = Rank.from_environment(int(plan["resources"]["processes"]), out)
    if rank.number != 0 and rank.rendezvous is not None:
        end_with_parent()
    pipe = PipeWriter.from_environment() if rank.number == 0 else None
    try:
        with Peers.start(rank, MODULE) as peers:
            return _work_among(peers, plan, rank, pipe)
    except PosttrainError as error:
        return report(error, pipe)


def _work_among(peers: Peers, plan: dict[str, Any], rank: Rank, pipe: PipeWriter | None) -> int:
    """Work; tell an error of our own from the echo of another rank's death.

    Raises:
        PosttrainError: what went wrong, when it is known.
    """
    try:
        work(plan, rank, pipe)
    except PosttrainError:
        raise
    except Exception as error:
        if "out of memory" in str(error).lower() or isinstance(error, MemoryError):
            raise InfrastructureError("out of memory; ask for a smaller config.micro_batch_size") from error
        if (reason := peers.lost(wait_s=2.0)) is None:
            raise  # a bug: its traceback is the best that can be said
        sys.stderr.write(f"{reason}; the attempt ends with it\n")
        return LOST_RANK_EXIT
    return 0


def work(plan: dict[str, Any], rank: Rank, pipe: PipeWriter | None) -> None:
    """What every rank does, from the plan to the last step.

    Raises:
        InputError: something that the plan names cannot be trained on.
        InfrastructureError: a package is missing, or the disk fails.
    """
    # Heavy, and only here: the other ranks are on their way meanwhile.
    try:
        import torch
        from transformers.utils import logging

        from executors.trainers.training import Job, train
        from executors.trainers.world import World
    except ImportError as error:
        raise InfrastructureError(
            f"training needs an optional dependency: pip install 'posttrain[train]' ({error})"
        ) from error
    progress_bars: Any = logging
    progress_bars.disable_progress_bar()  # the log is a file
    job = Job.from_plan(plan, output_directory())
    torch.set_num_threads(job.config.threads)
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # costs time, hides nothing
    world = World.join(rank, plan["resources"]["device"])
    train(job, world, pipe)
    world.leave()


def report(error: PosttrainError, pipe: PipeWriter | None) -> int:
    """One line in the log, one message on the pipe; returns the exit code."""
    traceback.print_exc()
    reason = " ".join(str(error).split())
    sys.stderr.write(f"failed: {reason}\n")
    if pipe is not None:
        pipe.failed(reason=reason, retryable=isinstance(error, InfrastructureError))
    return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
