"""The child of the `fsdp` executor: `python -m executors.trainers.worker`, started once; it starts its other ranks itself.

What the user must mend ends in one `failed` message and exit code 2; what another attempt may mend in `failed` with
`retryable`, or in a plain exit code when not even that can be said.
"""

from __future__ import annotations

import sys
import traceback
from typing import Any

from executors.pipe import PipeWriter, output_directory, read_plan
from executors.trainers.ranks import Peers, Rank, end_with_parent
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
        with Peers.start(rank, MODULE):
            _work(plan, rank, pipe)
    except PosttrainError as error:
        return _report(error, pipe)
    except MemoryError:
        return _report(InfrastructureError("out of memory; ask for a smaller micro_batch_size"), pipe)
    return 0


def _work(plan: dict[str, Any], rank: Rank, pipe: PipeWriter | None) -> None:
    # Heavy, and only here: the other ranks are on their way meanwhile.
    try:
        import torch

        from executors.trainers.training import Job, train
        from executors.trainers.world import World
    except ImportError as error:
        raise InfrastructureError(
            f"training needs an optional dependency: pip install 'posttrain[train]' ({error})"
        ) from error
    job = Job.from_plan(plan, output_directory())
    torch.set_num_threads(job.config.threads)
    torch.use_deterministic_algorithms(True)
    world = World.join(rank, plan["resources"]["device"])
    train(job, world, pipe)
    world.leave()


def _report(error: PosttrainError, pipe: PipeWriter | None) -> int:
    """One line in the log, one message on the pipe."""
    traceback.print_exc()
    reason = " ".join(str(error).split())
    sys.stderr.write(f"failed: {reason}\n")
    if pipe is not None:
        pipe.failed(reason=reason, retryable=isinstance(error, InfrastructureError))
    return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
