"""Checkpoints of sharded training: what a directory holds, and how it is written and read without a pickle anywhere.

    checkpoint.json                 step, resume level, world size, samples seen, and the size of every other file
    model/                          a Hugging Face directory with the full weights, as an engine loads it
    shards/rank-00000.json          which part of which tensor this rank's files hold
    shards/rank-00000-model.safetensors        fp32 weights      shards/rank-00000-optimizer.safetensors   moments, steps
    rng/rank-00000.json             Python, NumPy, torch and CUDA generators of this rank
    scheduler.json  loader.json  trainer.json

What lives here

    files          files that are hashed while they are written and durable when they are closed; safetensors without copies
    layout         `checkpoint.json` and the shard plans: written, and read from outside with bounds
    random_state   all generators of a process as JSON
    shards         local pieces of sharded tensors: written by each rank, read back at any world size
    model_files    the Hugging Face directory: checked, loaded, and written with new weights
    state          what a checkpoint holds, as one object; `save` and `restore`

The main flow of a save: every rank writes and syncs its own files in a fresh directory; rank 0 collects their records, writes
the rest, renames the directory, syncs its parent, and only then announces it. Digests are checked by the parent before a
resume; here sizes and headers are, before anything is read.

May import `ledger`; torch in the modules that the child loads.
"""
