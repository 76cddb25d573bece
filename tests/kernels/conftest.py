"""Every test of this folder runs the kernels on the stand-in driver, guarded, poisoned, in the schedule it asks for."""

import shutil

import pytest
from tests.kernels.emulator import CUDA, SHARED, Emulator, build, guarded_launches, poisoned


@pytest.fixture(scope="session")
def stand_in():
    return Emulator(build(CUDA / "emulator" / "driver.cpp", *SHARED))


#: Thread and block orders; a kernel has to give the same bits in each.
SCHEDULES = [("forward", "forward", 1), ("reverse", "reverse", 1), ("shuffle", "shuffle", 7)]


@pytest.fixture(params=SCHEDULES, ids=[schedule[0] for schedule in SCHEDULES])
def schedule(request):
    return request.param


@pytest.fixture
def emulator(stand_in, schedule):
    """The stand-in driver in one of the schedules."""
    stand_in.open()
    stand_in.configure(*schedule)
    with poisoned(), guarded_launches():
        yield stand_in


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
