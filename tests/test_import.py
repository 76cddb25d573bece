"""What `import specrs` costs and brings."""

import subprocess
import sys

import numpy as np

import specrs
from specrs import _core


def test_import_is_light():
    code = (
        "import sys, time; import numpy; start = time.perf_counter(); import specrs; "
        "took = time.perf_counter() - start; "
        "heavy = {'torch', 'transformers', 'rich'} & set(sys.modules); "
        "print(took); assert not heavy, heavy; assert took < 0.1, took"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_version_is_the_crates():
    assert specrs.__version__ == _core.__version__


def test_coins_are_keyed_and_in_range():
    positions = np.arange(1000, dtype=np.uint32)
    coins = _core.coins(7, positions, "accept")
    assert coins.min() >= 0
    assert coins.max() < 1
    assert np.array_equal(coins, _core.coins(7, positions, "accept"))
    assert not np.array_equal(coins, _core.coins(7, positions, "emit"))
    assert abs(coins.mean() - 0.5) < 0.03
