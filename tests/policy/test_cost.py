"""The cost table: measured once per setting, kept, refused where it does not belong."""

import json

import numpy as np
import pytest
from tests.toys import TattleLM

import specrs
from specrs.cli import main
from specrs.errors import CorruptFileError, FileAccessError, InvalidInputError
from specrs.policies import cost as module
from specrs.policies.cost import CostTable, fingerprint, measure_rows, stored_path, target_cost

FOREVER = {"eos_token_id": None}


class Module:
    """What a wrapped model needs for a fingerprint."""

    def parameters(self):
        return iter(())


class Wrapped(TattleLM):
    model = Module()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("SPECRS_CACHE", str(tmp_path))
    return tmp_path


@pytest.fixture
def measured(monkeypatch):
    """Count measurements."""
    calls = []
    real = CostTable.measure.__func__

    def measure(cls, target, repeats=1):
        calls.append(target)
        return real(cls, target, repeats)

    monkeypatch.setattr(CostTable, "measure", classmethod(measure))
    return calls


def test_it_is_measured_once_per_setting_and_kept(folder, measured):
    first = target_cost(Wrapped())
    again = target_cost(Wrapped())
    assert len(measured) == 1
    assert again.to_dict()["cells"] == first.to_dict()["cells"]
    assert len(list((folder / "cost").iterdir())) == 1
    target_cost(Wrapped(vocab_size=40))
    assert len(measured) == 2, "another model has another table"
    specrs.generate(Wrapped(), [1, 2], max_new_tokens=3, **FOREVER)
    assert len(measured) == 2


def test_a_change_of_threads_is_another_setting(folder, measured, monkeypatch):
    target = Wrapped()
    target_cost(target)
    import torch

    monkeypatch.setattr(torch, "get_num_threads", lambda: 77)
    target_cost(target)
    assert len(measured) == 2


def test_a_damaged_or_foreign_file_is_measured_anew(folder, measured, caplog):
    path = stored_path(fingerprint(Wrapped()))
    target_cost(Wrapped())
    for content in ("{", json.dumps({"version": 99}), "[]"):
        path.write_text(content)
        assert target_cost(Wrapped()).seconds(1) > 0
    table = json.loads(path.read_text())
    table["fingerprint"]["processor"] = "another"
    path.write_text(json.dumps(table))
    target_cost(Wrapped())
    assert len(measured) == 5
    assert "another setting" in caplog.text


def test_a_table_of_another_machine_disables_trimming_with_one_message(folder, tmp_path):
    target = Wrapped()
    table = CostTable.measure(target)
    table.fingerprint["processor"] = "another machine"
    path = tmp_path / "table.json"
    table.save(path)
    options = {"max_new_tokens": 20, **FOREVER}
    with pytest.warns(UserWarning, match="processor: table 'another machine'") as caught:
        made = specrs.generate(target, [7, 3, 9, 7, 3], cost_table=path, **options)
    assert len(caught) == 1
    assert made.report.method == "cache (fixed)"
    assert made.ids == specrs.generate(Wrapped(), [7, 3, 9, 7, 3], drafter="none", **options).ids
    right = CostTable.measure(target)
    made = specrs.generate(target, [7, 3, 9, 7, 3], cost_table=right, **options)
    assert made.report.method == "cache (libra)"


def test_saved_and_loaded_it_is_the_same(tmp_path):
    table = CostTable([1, 2, 4], [1.0, 1.5, 1.4], fingerprint={"model": "x"})
    table.add(4, 1000, [4, 6], [2.0, 3.0])
    table.step_seconds["model"] = 0.25
    table.save(tmp_path / "deep" / "t.json")
    again = CostTable.load(tmp_path / "deep" / "t.json")
    assert again.to_dict() == table.to_dict()
    assert again.seconds(5, 4, 2000) == table.seconds(5, 4, 2000) == 3.0
    assert again.differs_from({"model": "x"}) is None
    assert "model: table 'x', here 'y'" in again.differs_from({"model": "y"})
    with pytest.raises(FileAccessError, match="cannot read"):
        CostTable.load(tmp_path / "none.json")
    (tmp_path / "bad.json").write_text('{"version": 1}')
    with pytest.raises(CorruptFileError, match="no cost table"):
        CostTable.load(tmp_path / "bad.json")
    for rows, seconds in (([0], [1.0]), ([1, 1], [1.0, 1.0]), ([1], [-1.0]), ([1], [float("nan")])):
        with pytest.raises(InvalidInputError):
            CostTable(rows, seconds)


class Stairs(TattleLM):
    """A target whose forwards cost a step at 9 rows, on a clock of its own."""

    clock = 0.0

    def score(self, states, pending, draft):
        rows = sum(len(p) for p in pending) + len(draft.tokens)
        Stairs.clock += 1.0 + (rows >= 9)
        return super().score(states, pending, draft)


@pytest.mark.parametrize("batch", [1, 2])
def test_a_stair_is_found_where_it_is(monkeypatch, batch):
    monkeypatch.setattr(module.time, "perf_counter", lambda: Stairs.clock)
    found = measure_rows(Stairs(), [batch, 4, 16, 24], batch=batch, context=8, repeats=1, refine=True)
    table = CostTable(list(found), list(found.values())) if batch == 1 else None
    assert found[8] == 1.0
    assert found[9] == 2.0
    assert table is None or (table.seconds(8) == 1.0 and table.seconds(9) == 2.0)


@pytest.mark.parametrize("limit", [2, 3, 5, 20, 33, 80])
def test_measuring_stays_within_the_context(limit):
    table = CostTable.measure(TattleLM(max_context=limit))
    assert 0 < table.seconds(1) <= table.seconds(4) <= table.seconds(1000)


def test_a_profile_has_a_cell_per_batch_and_context():
    table = CostTable.profile(TattleLM(), batches=(1, 2), contexts=(4, 12), rows=range(1, 7), repeats=1)
    cells = [(b, c) for b, c, _ in table.core.cells()]
    assert {(1, 4), (1, 12), (2, 4), (2, 12)} <= set(cells)
    assert all(np.all(np.diff(seconds) >= 0) for _, _, seconds in table.core.cells())


def test_the_command_refuses_what_it_cannot_measure(capsys):
    for words in (["--rows", "0"], ["--batches", "0"], ["--contexts", "x"], ["--repeats", "0"]):
        assert main(["profile", *words]) == 2
    assert "got 'x'" in capsys.readouterr().err
