"""Heads: one sentence through a real model, every head's weights."""
