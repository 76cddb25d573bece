import pytest
import torch
import transformers


@pytest.fixture(autouse=True, scope="session")
def _quiet():
    """Tiny products are not worth a second thread; transformers has much to say about tiny models."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    yield
    torch.set_num_threads(before)
