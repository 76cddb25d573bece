"""Putting the kernel into a model and taking it out again."""

import pytest

torch = pytest.importorskip("torch")

from specrs.errors import InvalidInputError  # noqa: E402
from specrs.ops.linear import accelerate, linear, worthwhile  # noqa: E402


class Small(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(300, 96)
        self.up = torch.nn.Linear(96, 200)
        self.down = torch.nn.Linear(200, 96, bias=False)
        self.head = torch.nn.Linear(96, 300, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        return self.head(self.down(torch.relu(self.up(self.embed(tokens)))))


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Small().bfloat16().eval()


@torch.inference_mode()
def test_replaces_and_restores(model):
    tokens = torch.arange(7)[None]
    before = model(tokens)
    done = accelerate(model, when="always")
    assert set(done.replaced) == {"up", "down", "head"}
    assert not done.skipped
    hidden = torch.relu(linear(model.embed.weight[:7], model.up.weight, model.up.bias))
    expected = linear(linear(hidden, model.down.weight), model.head.weight)
    assert torch.equal(model(tokens)[0], expected)
    done.restore()
    done.restore()
    assert torch.equal(model(tokens), before)
    assert "forward" not in model.up.__dict__
    assert not done.replaced


@torch.inference_mode()
def test_rows_do_not_depend_on_each_other(model):
    tokens = torch.randint(0, 300, (1, 150))
    with accelerate(model, when="always"):
        together = model(tokens)
        for index in range(tokens.shape[1]):
            assert torch.equal(model(tokens[:, index : index + 1])[0, 0], together[0, index])


def test_leaves_the_rest_to_torch(model):
    model = model.float()
    few = torch.randint(0, 300, (1, 5))
    trained = model(few)
    accelerate(model, when="always")
    with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16):
        assert model(few).dtype == torch.bfloat16
    found = model(few)
    assert torch.equal(found, trained)
    found.sum().backward()
    assert model.up.weight.grad is not None


@torch.inference_mode()
def test_follows_a_change_of_dtype(model):
    accelerate(model, when="always")
    assert model.float()(torch.arange(3)).dtype == torch.float32


@torch.inference_mode()
def test_follows_a_resized_weight(model):
    accelerate(model, when="always")
    hidden = torch.randn(3, 96).bfloat16()
    model.head.weight = torch.nn.Parameter(model.head.weight[:200].clone())
    assert torch.equal(model.head(hidden), torch.nn.functional.linear(hidden, model.head.weight))
    model.up.bias = None
    assert torch.equal(model.up(hidden), linear(hidden, model.up.weight))


@torch.inference_mode()
def test_compiles_into_one_graph(model):
    tokens = torch.arange(9)[None]
    accelerate(model, when="always")
    expected = model(tokens)
    assert torch.equal(torch.compile(model, backend="eager", fullgraph=True)(tokens), expected)


def test_says_what_it_skips(model):
    model.half = torch.nn.Linear(8, 8).half()
    model.elsewhere = torch.nn.Linear(8, 8, device="meta")
    torch.nn.utils.parametrizations.weight_norm(model.up)
    done = accelerate(model, when="always")
    assert set(done.replaced) == {"down", "head"}
    assert set(done.skipped) == {"half", "elsewhere", "up"}
    assert "float16" in done.skipped["half"]
    again = accelerate(model, when="always")
    assert not again.replaced
    with pytest.raises(InvalidInputError, match="'never'"):
        accelerate(model, when="never")


def test_on_by_default_only_where_worthwhile(model):
    done = accelerate(model)
    assert bool(done.replaced) == worthwhile(torch.bfloat16)
    assert not worthwhile(torch.float64)
