"""The process group of a training, and the few collectives that the trainer itself needs."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore  # torch.distributed has it too, unseen by type checkers

from executors.trainers.ranks import Rank
from ledger.errors import InputError

MAX_SILENCE = timedelta(minutes=30)


@dataclass(frozen=True, slots=True)
class World:
    """This process among `size` ranks. `device` is where its shard of the model lives."""

    rank: int
    size: int
    device: torch.device

    @classmethod
    def join(cls, rank: Rank, device: Literal["cpu", "cuda"]) -> World:
        """Meet the other ranks. Local ranks meet in a file, so runs on one machine cannot take each other's port.

        Raises:
            InputError: a GPU is asked for and there are too few.
        """
        place = _device(rank, device)
        backend = "gloo" if device == "cpu" else "cpu:gloo,cuda:nccl"
        if rank.rendezvous is None:
            dist.init_process_group(backend, timeout=MAX_SILENCE)
        else:
            if sys.platform == "linux":
                os.environ.setdefault(
                    "GLOO_SOCKET_IFNAME", "lo"
                )  # ranks of one machine: nothing listens to the network
            store = FileStore(str(rank.rendezvous), rank.size)
            dist.init_process_group(backend, store=store, rank=rank.number, world_size=rank.size, timeout=MAX_SILENCE)
        return cls(rank.number, rank.size, place)

    def gather(self, value: Any) -> list[Any]:
        """The JSON values of all ranks, in order of rank. Bytes travel as JSON, so nothing is unpickled."""
        data = torch.frombuffer(bytearray(json.dumps(value).encode("ascii")), dtype=torch.uint8)
        lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        dist.all_gather(lengths, torch.tensor([data.numel()], dtype=torch.int64))
        longest = max(int(length) for length in lengths)
        padded = torch.zeros(longest, dtype=torch.uint8)
        padded[: data.numel()] = data
        blocks = [torch.zeros(longest, dtype=torch.uint8) for _ in range(self.size)]
        dist.all_gather(blocks, padded)
        return [json.loads(bytes(block[: int(n)].tolist())) for block, n in zip(blocks, lengths, strict=True)]

    def sum(self, value: torch.Tensor) -> float:
        """The sum of a scalar over all ranks."""
        total = value.detach().to("cpu", torch.float64).reshape(1)
        dist.all_reduce(total)
        return float(total)

    def leave(self) -> None:
        """End the process group, after every rank got here."""
        dist.barrier()
        dist.destroy_process_group()


def _device(rank: Rank, device: Literal["cpu", "cuda"]) -> torch.device:
    if device == "cpu":
        return torch.device("cpu")
    visible = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if rank.local >= visible:
        raise InputError(
            f"resources: {rank.size} processes want a GPU each and {visible} are visible; ask for fewer or for cpu"
        )
    place = torch.device("cuda", rank.local)
    torch.cuda.set_device(place)
    return place
