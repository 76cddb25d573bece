"""Training the payoff predictor: labels by replay, a fit that beats a constant, files, the command, the engine."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.toys import TattleLM, Vocabulary

import specrs
from specrs import SuffixCache
from specrs._core import PayoffPredictor
from specrs.cli import main
from specrs.drafters.token_classes import token_classes, tokenizer_fingerprint
from specrs.errors import CorruptFileError, FileAccessError, InvalidInputError
from specrs.train.payoff import fit, quality, replay, save


def documents(count: int = 12) -> list[np.ndarray]:
    """Return texts that copy earlier ones in part, so that drafts are accepted in part."""
    rng = np.random.default_rng(1)
    made = [rng.integers(0, 40, 120, dtype=np.uint32)]
    for _ in range(count - 1):
        text = made[rng.integers(len(made))].copy()
        text[rng.integers(0, 120, 12)] = rng.integers(0, 40, 12)
        made.append(text)
    return made


def test_labels_are_what_the_text_accepts() -> None:
    text = np.arange(100, dtype=np.uint32)
    cache = SuffixCache()
    cache.add(text)
    ((features, labels),) = replay([text], cache=cache)
    assert features.shape[0] == len(labels) > 0
    assert features.dtype == np.float32
    assert labels.max() == 40, "a copy is accepted to the draft's end"
    assert replay([text[:1]]) == []
    changed = text.copy()
    changed[60:] = 7
    ((_, labels),) = replay([changed], cache=cache)
    assert 0 in labels


def test_a_fit_knows_more_than_the_mean() -> None:
    rng = np.random.default_rng(0)
    features = rng.normal(size=(4000, 24)).astype(np.float32)
    features[:, 5] = 3.0  # a feature without spread
    labels = (4 * np.maximum(features[:, 0], 0) + 3 * (features[:, 1] > 1)).astype(np.int32)
    predictor = fit(features[:3000], labels[:3000], epochs=8)
    guesses = [predictor.predict(row) for row in features[3000:]]
    good, mean = quality(guesses, labels[3000:]), quality([labels[:3000].mean()] * 1000, labels[3000:])
    assert good.mean_absolute_error < 0.4 * mean.mean_absolute_error
    assert good.recall > 0.7
    assert mean.recall == 0.0
    assert fit(features[:64], labels[:64], epochs=1).to_bytes() == fit(features[:64], labels[:64], epochs=1).to_bytes()
    with pytest.raises(InvalidInputError, match="at least one"):
        fit(features[:0], labels[:0])


def test_the_command_makes_a_file_that_the_engine_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = []
    for number, text in enumerate(documents()):
        files.append(str(tmp_path / f"{number}.npy"))
        np.save(files[-1], text)
    out = tmp_path / "payoff.bin"
    assert main(["train", "payoff", *files, "--out", str(out), "--epochs", "2"]) == 0
    assert "held out" in capsys.readouterr().out
    assert sorted(path.suffix for path in tmp_path.iterdir() if path.suffix != ".npy") == [".bin"]
    options = {"max_new_tokens": 40, "eos_token_id": None}
    plain = specrs.generate(TattleLM(), [3, 4, 3, 4], drafter="none", **options)
    for sampling in ({}, {"temperature": 0.7, "seed": 3}):
        made = specrs.generate(
            TattleLM(), [3, 4, 3, 4], drafter="hybrid", draft_model=TattleLM(), payoff=out, **options, **sampling
        )
        assert sampling or made.ids == plain.ids
    assert main(["train", "payoff", files[0], "--out", str(out), "--epochs", "0"]) == 2
    assert main(["train", "payof", files[0]]) == 2


def test_files_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    features = np.random.default_rng(0).normal(size=(64, 24)).astype(np.float32)
    labels = np.arange(64, dtype=np.int32) % 5
    path = tmp_path / "payoff.bin"
    save(fit(features, labels, epochs=1, fingerprint="other"), path)
    assert PayoffPredictor.from_bytes(path.read_bytes()).fingerprint == "other"
    tokenizer = Vocabulary(["a", " b", "("])
    with pytest.raises(CorruptFileError, match="trained with tokenizer other, expected"):
        specrs.generate(TattleLM(3, tokenizer=tokenizer), [1], drafter="hybrid", payoff=path)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CorruptFileError, match="checksum"):
        specrs.generate(TattleLM(), [1], drafter="hybrid", payoff=path)
    with pytest.raises(FileAccessError, match="cannot read"):
        specrs.generate(TattleLM(), [1], drafter="hybrid", payoff=tmp_path / "missing")
    with pytest.raises(InvalidInputError, match="payoff is for drafter='hybrid'"):
        specrs.generate(TattleLM(), [1], drafter="cache", payoff=path)


def test_token_classes() -> None:
    tokenizer = Vocabulary(["a", "\u0120b", "(", ".", "\n", "|}"])
    assert token_classes(tokenizer, 8).tolist() == [0, 1, 4, 2, 9, 12, 0, 0]
    assert tokenizer_fingerprint(tokenizer) != tokenizer_fingerprint(Vocabulary(["a"]))
