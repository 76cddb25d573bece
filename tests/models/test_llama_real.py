"""The llama.cpp adapter on the real library, where it is installed: a tiny float32 model, and the demo model."""

import os
from importlib.util import find_spec

import numpy as np
import pytest
from tests.models.llama_trees import PARENTS, generate, paths, tree_draft

import specrs
from specrs.types import Draft

pytestmark = pytest.mark.skipif(
    find_spec("llama_cpp") is None, reason="llama-cpp-python is not installed (pip install llama-cpp-python==0.3.36)"
)
#: The user's own cache: the other tests of this folder have an empty one.
CACHE = os.environ.get("SPECRS_CACHE")


def test_real_float32_model_writes_what_transformers_writes(tmp_path):
    """A tiny float32 model: chains, trees and batches on real cells, against transformers."""
    import torch
    from tests.models.tiny_gguf import reference_network, write_gguf

    network = reference_network(tied=False)
    write_gguf(tmp_path / "tiny.gguf", network)
    target = specrs.load(tmp_path / "tiny.gguf", backend="llama.cpp", threads=1)
    assert target.max_context == 64
    prompt = [5, 6, 7, 8, 5, 6, 7]
    state = target.new_state(32)
    tokens = np.array([9, 10, 11, 12, 13, 14], np.uint32)
    scores = target.score([state], [np.array(prompt, np.uint32)], tree_draft(tokens))
    with torch.no_grad():
        for offset, path in enumerate(paths(PARENTS)):
            row = network(torch.tensor([[*prompt, *tokens[path].tolist()]])).logits[0, -1]
            assert np.allclose(scores.logits[offset], row.numpy(), atol=2e-2), offset
    state.commit(np.array([0, 3], np.int32), len(prompt))
    scores = target.score([state], [np.array([3], np.uint32)], Draft.empty(1))
    with torch.no_grad():
        row = network(torch.tensor([[*prompt, 9, 12, 3]])).logits[0, -1]
    assert np.allclose(scores.logits[0], row.numpy(), atol=2e-2)
    plain = generate(target, [prompt, prompt[:3]], drafter="none", max_new_tokens=30)
    for options in ({"draft_tokens": 5}, {"draft_tokens": 9, "draft_shape": "tree"}):
        assert generate(target, [prompt, prompt[:3]], drafter="cache", max_new_tokens=30, **options) == plain


@pytest.mark.model
def test_real_demo_model_is_identical_or_nearly_tied(monkeypatch):
    """SmolLM2 in 4 bits: llama-cpp-python's own greedy text, plain and with drafts."""
    if CACHE is None:
        monkeypatch.delenv("SPECRS_CACHE")
    else:
        monkeypatch.setenv("SPECRS_CACHE", CACHE)
    from llama_cpp import Llama

    from specrs.compare import compare
    from specrs.models.fetch import fetch

    path = fetch("smollm2-135m")
    target = specrs.load("smollm2-135m", backend="llama.cpp", threads=2)
    messages = [{"role": "user", "content": "Repeat this list: apples and pears, apples and plums, apples and figs."}]
    prompt = target.tokenizer.encode(target.tokenizer.apply_chat_template(messages), add_special_tokens=False)
    own = Llama(str(path), n_ctx=512, n_threads=2, n_threads_batch=2, verbose=False)
    texts = []
    for token in own.generate(prompt, temp=0.0):
        texts.append(token)
        if len(texts) == 40 or token in target.eos_token_ids:
            break
    own.close()
    plain = specrs.generate(target, prompt, drafter="none", max_new_tokens=40)
    assert plain.ids == texts
    for options in ({"draft_tokens": 8}, {"draft_tokens": 16, "draft_shape": "tree"}):
        found = compare(target, prompt, drafter="cache", max_new_tokens=40, **options)
        assert found.identical or found.difference.near_tie, found.difference
        assert found.method.report.accepted > 0
