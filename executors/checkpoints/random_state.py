"""Every random generator of a process as JSON, and back."""

from __future__ import annotations

import base64
import binascii
import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from ledger.errors import InputError


def seed_everything(seed: int) -> None:
    """Seed every generator of this process; CUDA's with torch's."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def capture(device: torch.device) -> dict[str, Any]:
    """The state of Python's, NumPy's and torch's generators, and of the device's own when it is a GPU."""
    version, words, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    return {
        "python": {"version": version, "words": list(words), "gauss": gauss},
        "numpy": {
            "kind": str(kind),
            "keys": [int(key) for key in keys],
            "position": int(position),
            "has_gauss": int(has_gauss),
            "cached": float(cached),
        },
        "torch": _text(torch.get_rng_state()),
        "cuda": _text(torch.cuda.get_rng_state(device)) if device.type == "cuda" else None,
    }


def restore(state: Mapping[str, Any], device: torch.device) -> None:
    """Put every generator where it was. Call it last: making an iterator or a module draws numbers.

    Raises:
        InputError: not a state that `capture` wrote, or one of another kind of device.
    """
    try:
        python, numpy = state["python"], state["numpy"]
        random.setstate((python["version"], tuple(python["words"]), python["gauss"]))
        keys = np.array(numpy["keys"], dtype=np.uint32)
        np.random.set_state((numpy["kind"], keys, numpy["position"], numpy["has_gauss"], numpy["cached"]))
        torch.set_rng_state(_tensor(state["torch"]))
        cuda = None if state["cuda"] is None else _tensor(state["cuda"])
    except (LookupError, TypeError, ValueError, OverflowError, RuntimeError, binascii.Error) as error:
        raise InputError(f"the checkpoint's random state is malformed: {error}") from None
    if (cuda is None) != (device.type == "cpu"):
        raise InputError(f"the checkpoint's random state is of another kind of device than {device.type}")
    if cuda is not None:
        torch.cuda.set_rng_state(cuda, device)


def _text(state: torch.Tensor) -> str:
    return base64.b64encode(state.numpy().tobytes()).decode("ascii")


def _tensor(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text, validate=True)), dtype=torch.uint8)
