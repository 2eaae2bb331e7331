"""Rollout: a model answers prompts.

What lives here
    base.py           `Sampling`, `Completion`: what is asked and what comes back; no tensor library
    chat.py           a prompt as the text and tokens that a model sees; training uses it too
    transformers.py   batched generation with a key-value cache through Hugging Face transformers, on one device

The main flow
    generator = load_generator(directory, "cpu")
    for batch in generator.generate(prompts, Sampling(max_new_tokens=64), batch_size=128): …   # (index, Completion) pairs

A model is a verified local directory: safetensors and JSON, never code that came with it and never a hub's name. May
import: `ledger`, and torch and transformers inside of functions.
"""
