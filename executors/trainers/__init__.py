"""Trainers: child processes that change weights, and the executors that plan them.

What lives here

    config       the settings of a fine-tuning stage, `SftConfig`; no torch
    fsdp         `FsdpExecutor`: what the parent side knows; no torch
    worker       the child's `main`: starts the other ranks, trains, and turns what goes wrong into one line on the pipe
    ranks        one process a rank on this machine, none of which outlives the first; standard library only
    world        the process group: a rendezvous file instead of a port, and the few collectives that are needed
    data         rows → tokens, and a loader whose order is a function of seed and epoch and whose state is a position
    objectives   losses as sums; one division, by the global count
    schedule     the learning rate as a function of the step
    training     the main flow: shard, restore, step, save

The main flow of a step: every rank draws the same global batch and takes its share of it, sums token losses over its
micro-batches, and divides once by the number of response tokens in the global batch, so neither the split into
micro-batches nor the number of ranks changes the gradient.

May import `ledger` and, inside of the child only, torch and transformers.
"""
