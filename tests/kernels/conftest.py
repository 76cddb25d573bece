"""Every test of this folder runs the kernels on the stand-in driver, guarded, poisoned, in the schedule it asks for."""

import pytest
import torch

from tests.kernels.emulator import CUDA, Emulator, build, guarded_launches


@pytest.fixture(scope="session")
def stand_in():
    return Emulator(build(CUDA / "emulator" / "driver.cpp", "-shared", "-fPIC"))


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
    was = torch.are_deterministic_algorithms_enabled(), torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True  # what the ops allocate starts as NaN or the largest int
    with guarded_launches():
        yield stand_in
    torch.use_deterministic_algorithms(was[0])
    torch.utils.deterministic.fill_uninitialized_memory = was[1]
