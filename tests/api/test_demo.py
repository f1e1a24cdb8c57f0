"""The demo, with a tiny recipe."""

from types import SimpleNamespace

import pytest

import regard
from regard.api import demo
from support.training_runs import rnn_recipe


@pytest.mark.slow
def test_the_demo_resumes_and_names_its_model(tmp_path, monkeypatch, capsys):
    (tmp_path / "tiny.toml").write_text(
        rnn_recipe("dates", dim=8, max_length=3, max_steps=2, validate_every=2)
    )
    monkeypatch.setattr(demo, "RECIPES", {str(tmp_path / "tiny.toml"): "A tiny model"})
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("NO_COLOR", raising=False)
    run = tmp_path / "cache/demo-1/tiny"
    with (tmp_path / "messages").open("w+") as messages:
        terminal = SimpleNamespace(isatty=lambda: True)
        monkeypatch.setattr(demo, "sys", SimpleNamespace(stdout=terminal, stderr=messages))
        regard.demo()
        shown = capsys.readouterr().out
        assert f"The model is in {run}" in shown
        assert "\x1b[" in shown  # colors
        assert regard.load(run).predict(["3 March 1999"], max_length=3)
        regard.demo()
        messages.seek(0)
        assert "resumed at step 2" in messages.read()
        (tmp_path / "tiny.toml").write_text(
            rnn_recipe("dates", dim=4, max_length=3, max_steps=2, validate_every=2)
        )
        with pytest.raises(regard.CheckpointRefused):  # a folder of the user's own
            regard.demo(out=run.parent)
        regard.demo()
        messages.seek(0)
        assert "is of another version of Regard: training begins" in messages.read()
        assert regard.load(run).recipe.model.decoder.config.dim == 4


def test_a_predictor_prints_a_short_summary(tmp_path):
    from support.predictors import classifier, translator

    for model, kind in ((translator(), "Seq2Seq"), (classifier(), "Classifier")):
        assert repr(model).startswith(f"Predictor({kind}, ")
        assert len(repr(model)) < 80
