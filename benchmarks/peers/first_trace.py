"""Peer: a fresh process that imports transformers, loads the model in argv[1] and gets argv[2]'s attention."""

from __future__ import annotations

import sys

import torch
from transformers import AutoModel, AutoTokenizer

torch.set_num_threads(1)
folder, text = sys.argv[1:]
tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModel.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32).eval()
with torch.inference_mode():
    attentions = model(**tokenizer(text, return_tensors="pt"), output_attentions=True).attentions
print(len(attentions), flush=True)
