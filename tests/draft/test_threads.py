"""Many threads on one cache: no panic, no deadlock, and a request's result depends on no other's."""

from __future__ import annotations

import contextlib
import os
import threading

import numpy as np

from specrs import SuffixCache
from specrs.errors import RequestError


def test_threads_on_one_cache() -> None:
    """SPECRS_SOAK_STEPS sets the steps per thread (150 by default)."""
    steps = int(os.environ.get("SPECRS_SOAK_STEPS", "150"))
    cache = SuffixCache(max_tokens=20_000)
    failures: list[BaseException] = []

    def work(worker: int) -> None:
        rng = np.random.default_rng(worker)
        mine: dict[int, int] = {}
        try:
            for step in range(steps):
                request = worker * 1000 + step
                cache.start(request, rng.integers(0, 9, rng.integers(0, 60)))
                mine[request] = 0
                for other in list(mine):
                    drafted = cache.step(other, rng.integers(0, 9, 3), 8, shape=("chain", "tree")[step % 2])
                    assert len(drafted[0]) <= 8
                ids = list(mine)
                cache.step_many(ids, np.zeros(len(ids), int), np.arange(len(ids) + 1), 4, threads=2)
                if len(mine) > 3:
                    gone = ids[rng.integers(len(ids))]
                    del mine[gone]
                    (cache.finish if step % 3 else cache.abort)(gone)
                if step % 50 == 0:
                    cache.evict_to(int(rng.integers(20_000)))
                # Ids of other threads come and go: a clear error, or success.
                with contextlib.suppress(RequestError):
                    cache.draft(int(rng.integers(64)) * 1000 + step, 4)
        except BaseException as error:  # what a thread raises must fail the test
            failures.append(error)

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=240)
        assert not thread.is_alive(), "deadlock"
    assert not failures, failures[0]
    assert cache.stats()["cached_tokens"] <= 20_000


def test_neighbours_do_not_change_a_result() -> None:
    rng = np.random.default_rng(9)
    texts = [rng.integers(0, 5, 300) for _ in range(16)]
    alone: list[list[int]] = []
    for text in texts:
        cache = SuffixCache()
        cache.start(0, text)
        alone.append(cache.draft(0, 9, shape="tree")[0].tolist())
    together = SuffixCache()
    for request, text in enumerate(texts):
        together.start(request, text)
    for threads in (1, 2, 5, 64):
        order = rng.permutation(16)
        tokens, *_, row_ptr, _, _ = together.step_many(order, [], np.zeros(17, int), 9, shape="tree", threads=threads)
        for row, request in enumerate(order):
            assert tokens[row_ptr[row] : row_ptr[row + 1]].tolist() == alone[request]
