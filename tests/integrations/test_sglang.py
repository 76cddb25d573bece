"""The SGLang algorithm: against a stand-in always, and against the installed package's classes where it imports."""

import importlib
import importlib.abc
import importlib.machinery
import logging
import sys
from types import ModuleType
from unittest.mock import MagicMock

import numpy as np
import pytest
from tests.integrations import standin_sglang as standin

from specrs.errors import InvalidInputError, MissingExtraError, UnsupportedEngineError, VocabularyMismatchError
from specrs.integrations import sglang as ours
from specrs.integrations._config import EngineOptions
from specrs.integrations._corpus import PATIENCE, Corpus, Text


@pytest.fixture
def engine(monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == "sglang"]:
        monkeypatch.delitem(sys.modules, name)
    for name, module in standin.modules().items():
        monkeypatch.setitem(sys.modules, name, module)
    ours.register()


def scheduler(**options):
    eos = options.pop("eos", ())
    arguments = standin.server_args(**options)
    algorithm = standin.SpeculativeAlgorithm.from_string("specrs")
    worker = algorithm.create_worker(arguments)(
        server_args=arguments, gpu_id=0, nccl_port=1, target_worker=standin.target_worker(eos=eos)
    )
    return standin.Scheduler(worker)


def texts(seed, count, length=70):
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        phrase = rng.integers(1, 1000, 11).tolist()
        made.append((phrase + rng.integers(1, 1000, 3).tolist() + phrase * (length // 11))[:length])
    return made


@pytest.mark.usefixtures("engine")
def test_it_is_registered_once_and_answers_as_ngram():
    ours.register()
    algorithm = standin.SpeculativeAlgorithm.from_string("SPECRS")
    assert algorithm.is_ngram()
    assert not algorithm.is_none()
    assert not algorithm.has_draft_kv()
    arguments = standin.server_args()
    algorithm.handle_server_args(arguments)
    assert arguments.handled_as == "NGRAM"


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("overlap", [False, True])
def test_answers_are_the_same_in_fewer_rounds(overlap):
    run = scheduler(overlap=overlap)
    requests = [standin.Request(str(i), t[:20], t[20:]) for i, t in enumerate(texts(0, 6))]
    for request in requests:
        run.add(request)
    run.run()
    assert all(request.done == len(request.answer) for request in requests)
    assert run.rounds < 25
    if not overlap:
        assert [request.output_ids for request in requests] == [request.answer for request in requests]


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("overlap", [False, True])
def test_the_drafter_reads_exactly_the_committed_text(overlap, monkeypatch):
    """Retractions, returns, ids used again: what the cache holds of a request is its text, each token once."""
    read = {}
    cache = Corpus._meet

    def watching(self, name, text):
        unread = cache(self, name, text)
        number = self._seen[name].number
        if number not in read:
            read[number] = text.read(0, len(text))
        else:
            read[number] += unread
        assert read[number] == text.read(0, len(text))
        return unread

    monkeypatch.setattr(Corpus, "_meet", watching)
    rng = np.random.default_rng(1)
    run = scheduler(overlap=overlap)
    waiting = [standin.Request(str(i % 5), t[:20], t[20:]) for i, t in enumerate(texts(2, 30))]
    everyone, away = list(waiting), []
    while waiting or away or run.batch:
        taken = {request.rid for request in run.batch + away}
        if away and rng.random() < 0.5:
            run.add(away.pop())
        elif waiting and len(run.batch) < 4 and waiting[-1].rid not in taken:
            run.add(waiting.pop())
        elif waiting:
            waiting.insert(0, waiting.pop())
        if run.batch and rng.random() < 0.2:
            away.append(run.batch.pop(int(rng.integers(len(run.batch)))))
        if run.batch:
            run.round()
    assert all(request.done == len(request.answer) for request in everyone)
    assert len(read) <= 34  # 30, and few that were taken for finished while away


@pytest.mark.usefixtures("engine")
def test_finished_text_serves_the_next_request():
    run = scheduler()
    text = np.random.default_rng(1).permutation(np.arange(1, 200)).tolist()
    rounds = []
    for _ in range(2):
        before = run.rounds
        run.add(standin.Request("same id", text[:20], text[20:120]))
        run.run()
        rounds.append(run.rounds - before)
    assert rounds[0] >= 99
    assert rounds[1] <= 14
    run.worker.clear_cache_pool()
    assert run.worker.ngram_corpus.stats()["cached_tokens"] == 0


@pytest.mark.usefixtures("engine")
def test_a_fault_is_a_plain_round_and_one_warning(monkeypatch, caplog):
    run = scheduler()
    (text,) = texts(3, 1)
    corpus = run.worker.ngram_corpus
    step, calls = corpus._drafter.step, []

    def failing(*arguments):
        calls.append(1)
        if len(calls) in (2, 3):
            raise RuntimeError("disk on fire")
        return step(*arguments)

    monkeypatch.setattr(corpus._drafter, "step", failing)
    request = standin.Request("a", text[:20], text[20:])
    run.add(request)
    with caplog.at_level(logging.WARNING):
        run.run()
    assert request.output_ids == request.answer
    assert caplog.text.count("no drafts in this step") == 1


@pytest.mark.usefixtures("engine")
def test_store_with_tensor_parallelism_is_refused(monkeypatch, tmp_path):
    monkeypatch.setenv("SPECRS_ENGINE", f'{{"store": "{tmp_path / "store"}", "fingerprint": "toy"}}')
    with pytest.raises(InvalidInputError, match="tp_size 2"):
        scheduler(tp_size=2)
    run = scheduler()
    text = texts(4, 1)[0]
    run.add(standin.Request("a", text[:20], text[20:]))
    run.run()
    run.worker.ngram_corpus.close()
    monkeypatch.setenv("SPECRS_ENGINE", f'{{"store": "{tmp_path / "store"}", "fingerprint": "other"}}')
    with pytest.raises(VocabularyMismatchError, match="other"):
        scheduler()


def test_missing_or_other_packages_are_told(monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == "sglang"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "sglang", None)
    with pytest.raises((MissingExtraError, UnsupportedEngineError), match="SGLang"):
        ours.register()
    made = standin.modules()
    del made["sglang.srt.speculative.ngram_worker"].NgramCorpus
    for name, module in made.items():
        monkeypatch.setitem(sys.modules, name, module)
    ours.register()
    with pytest.raises(UnsupportedEngineError, match=r"NgramCorpus.*tested with"):
        scheduler()


def corpus(nodes=6, **options):
    return Corpus(nodes, 1000, EngineOptions(**options), (), lambda: "toy")


def test_trees_are_topological_and_padded_below_the_root():
    made = corpus()
    text = [1, 2, 3, 9, 1, 2, 4, 9, 1, 2]
    tokens, mask = made.draft(["a"], [Text(text)])
    mask = mask.reshape(6, 6)
    assert tokens[0] == 2
    assert {3, 4} <= set(tokens[1:].tolist())
    for node in range(1, 6):
        parent = max(j for j in range(node) if mask[node, j])
        assert mask[node].sum() == mask[parent].sum() + 1
    empty, mask = made.draft(["b"], [Text([5])])
    assert empty.tolist() == [5, 0, 0, 0, 0, 0]
    assert mask.reshape(6, 6)[:, 0].all()


def test_empty_batch_and_a_single_node():
    assert [len(array) for array in corpus().draft([], [])] == [0, 0]
    tokens, mask = corpus(nodes=1).draft(["a"], [Text([1, 2])])
    assert (tokens.tolist(), mask.tolist()) == ([2], [1])


def test_a_request_that_stays_away_is_finished():
    made = corpus()
    made.draft(["a", "b"], [Text([1, 2, 3]), Text([4, 5, 6])])
    made.erase_match_state(["b", "nobody"])
    for _ in range(PATIENCE + 1):
        made.draft(["a"], [Text([1, 2, 3])])
    assert made.stats()["active_requests"] == 1
    assert made.stats()["cached_documents"] == 1


def test_named_corpora_come_and_go():
    made = corpus()
    assert made.load_external_corpus_named("one", [[1, 2, 3], [4, 5]]) == 5
    made.load_external_corpus_named("two", [list(range(7, 20))])
    with pytest.raises(InvalidInputError, match="loaded already"):
        made.load_external_corpus_named("one", [])
    assert made.draft(["a"], [Text([7, 8, 9, 10, 11, 12])])[0][1:3].tolist() == [13, 14]
    made.remove_external_corpus("one")
    assert made.list_external_corpora() == {"two": 13}
    with pytest.raises(InvalidInputError, match="there are: two"):
        made.remove_external_corpus("one")


def test_text_reads_across_parts():
    text = Text([1, 2, 3], [], [4, 5], [6])
    whole = [1, 2, 3, 4, 5, 6]
    for start in range(7):
        for end in range(start, 7):
            assert text.read(start, end) == whole[start:end]


# With the installed package. Where it is not, or does not import without a device, these skip.


@pytest.fixture
def sglang():
    module = pytest.importorskip("sglang.srt.speculative.spec_info", exc_type=ImportError)
    yield module
    from sglang.srt.speculative import spec_registry

    spec_registry._REGISTRY.pop(ours.NAME, None)


def test_the_real_registry_takes_it(sglang):
    ours.register()
    algorithm = sglang.SpeculativeAlgorithm.from_string("specrs")
    ngram = sglang.SpeculativeAlgorithm.NGRAM
    for name in (name for name in vars(sglang.SpeculativeAlgorithm) if name.startswith(("is_", "supports_", "has_"))):
        assert getattr(algorithm, name)() == getattr(ngram, name)(), name


class NoKernels(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Gives empty modules for SGLang's compiled kernels, which do not load without a device."""

    def find_spec(self, name, path=None, target=None):
        own = name.split(".")[0] == "sgl_kernel"
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if own else None

    def create_module(self, spec):
        made = ModuleType(spec.name)
        made.__path__ = []

        def attribute(name):
            if name.startswith("__"):
                raise AttributeError(name)
            return MagicMock(name=name)

        made.__getattr__ = attribute
        return made

    def exec_module(self, module):
        pass


def test_the_real_worker_class_is_extended(sglang, monkeypatch):
    try:
        importlib.import_module("sgl_kernel")
    except ImportError:
        monkeypatch.setattr(sys, "meta_path", [NoKernels(), *sys.meta_path])
    pytest.importorskip("sglang.srt.speculative.ngram_worker", exc_type=ImportError)
    from sglang.srt.speculative.ngram_worker import NGRAMWorker, _derive_tree_links

    worker_class = ours.make_worker_class()
    assert issubclass(worker_class, NGRAMWorker)
    # What the real worker derives from our mask is the tree that the core makes of the same parents.
    made = Corpus(6, 1000, EngineOptions(), (), lambda: "toy")
    _, mask = made.draft(["a"], [Text([1, 2, 3, 9, 1, 2, 4, 9, 1, 2])])
    child, sibling = _derive_tree_links(mask.astype(bool), 1, 6)
    from specrs._core import tree_links

    tree = mask.reshape(6, 6)
    parents = np.array([max(j for j in range(node) if tree[node, j]) - 1 for node in range(1, 6)], np.int32)
    first, following = tree_links(parents, np.array([0, 5]))
    assert child[0].tolist() == first.tolist()
    assert sibling[0].tolist() == following.tolist()
