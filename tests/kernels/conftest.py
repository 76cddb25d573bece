"""Every test of this folder runs the kernels on the stand-in driver, guarded, poisoned, in the schedule it asks for.

Where there is a CUDA device, tests with the fixture ``emulator`` run once more there (mark ``gpu``).
"""

import shutil

import pytest
import torch
from tests.kernels.emulator import CUDA, SHARED, Emulator, build, guarded_launches, open_real_driver, poisoned


@pytest.fixture(scope="session")
def stand_in():
    return Emulator(build(CUDA / "emulator" / "driver.cpp", *SHARED))


#: Thread and block orders; a kernel has to give the same bits in each.
SCHEDULES = [("forward", "forward", 1), ("reverse", "reverse", 1), ("shuffle", "shuffle", 7)]


RUNS = [pytest.param(schedule, id=schedule[0]) for schedule in SCHEDULES]
if torch.cuda.is_available():
    RUNS.append(pytest.param(None, id="device", marks=pytest.mark.gpu))


@pytest.fixture(autouse=True)
def driver(request):
    """What a test marked ``gpu`` launches by: the real driver, whatever an earlier test has opened."""
    if request.node.get_closest_marker("gpu") is not None:
        open_real_driver()


@pytest.fixture(params=RUNS)
def emulator(request):
    """The stand-in driver in one of the schedules; on a machine with a device that one, too."""
    place = "cpu" if request.param is not None else "cuda"
    if request.param is not None:
        stand_in = request.getfixturevalue("stand_in")
        stand_in.open()
        stand_in.configure(*request.param)
    with poisoned(), guarded_launches(place):
        yield place


@pytest.fixture
def patched(tmp_path_factory):
    """Copy the sources with texts replaced, each of which must be there exactly once."""

    def patch(*replacements):
        copy = tmp_path_factory.mktemp("sources") / "cuda"
        shutil.copytree(CUDA, copy)
        for file, old, new in replacements:
            text = (copy / file).read_text()
            assert text.count(old) == 1, f"{file} has {old!r} {text.count(old)} times, expected once"
            (copy / file).write_text(text.replace(old, new))
        return copy

    return patch
