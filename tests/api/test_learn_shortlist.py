"""`regard shortlist`: from a checkpoint and its data to a checkpoint with a shortlist, which searches use."""

import shutil

import pytest
import torch

import regard
from regard.checkpoint import store
from regard.checkpoint.format import SHORTLIST
from support.forged import GOLDEN

PAIRS = [("abc", "cba"), ("ab", "ba"), ("cab", "bac"), ("bcd", "dcb"), ("d", "d")] * 3


@pytest.fixture
def run(tmp_path):
    """A checkpoint, and a table of pairs."""
    shutil.copytree(GOLDEN / "transformer", tmp_path / "model")
    lines = ["source\ttarget", *("\t".join(pair) for pair in PAIRS)]
    (tmp_path / "pairs.tsv").write_text("\n".join(lines) + "\n")
    return tmp_path / "model"


def learn(run, **options):
    table = run.with_name("pairs.tsv")
    return regard.shortlist(run, data=[table], columns=["source", "target"], **options)


def test_a_shortlist_is_learned_kept_and_used(run):
    before = store.read(run)
    folder, learned = learn(run, candidates=1, frequent=1)
    assert folder == run
    after = store.read(run)
    assert after.keys() - before.keys() == {SHORTLIST}
    assert all(after[name] == content for name, content in before.items())
    model = regard.load(run)
    assert torch.equal(model.shortlist.likely, learned.likely)
    (outputs,) = model.outputs(["ab"], shortlist=True)
    source, target = (vocabulary.encode("ab") for vocabulary in (model.source, model.target))
    row = [*model.source.special_tokens.source(source)]
    allowed = {int(token) for each in row for token in learned.likely[each]} | set(
        learned.frequent.tolist()
    )
    assert set(outputs[0].token_ids) <= allowed | set(model.target.special_tokens.ends)
    assert set(target) <= allowed  # translations of these letters
    learn(run, candidates=2)  # replaces it
    assert regard.load(run).shortlist.likely.shape[1] == 2


def test_a_search_without_one_is_refused(run):
    with pytest.raises(
        regard.InvalidArgument, match=r"a checkpoint with a shortlist.*regard shortlist"
    ):
        regard.load(run).predict(["ab"], shortlist=True)


def test_edits_beside_it_are_refused(run):
    learn(run)
    edits = [{"edit": "switch_head_off", "map": "decoder 1 cross", "head": 0}]
    with pytest.raises(regard.InvalidArgument, match="false beside edits"):
        regard.load(run).predict(["ab"], shortlist=True, edits=edits)


def tensors(
    likely: int = 0, frequent: int = 0, rows: int = 261, dtype=torch.int32
) -> dict[str, torch.Tensor]:
    return {
        "likely": torch.full((rows, 1), likely, dtype=dtype),
        "frequent": torch.full((1,), frequent, dtype=dtype),
    }


@pytest.mark.parametrize(
    ("tensors", "problem"),
    [
        (tensors(rows=3), "a row for"),
        (tensors(dtype=torch.float32), "int32"),
        (tensors(likely=1 << 20), "below"),
        (tensors(likely=-2), "below"),
        (tensors(frequent=-1), "below"),
        ({"other": torch.zeros(1)}, "int32"),
    ],
)
def test_a_forged_one_is_refused(run, tensors, problem):
    store.add(run, SHORTLIST, tensors)
    with pytest.raises(regard.CheckpointRefused, match=problem):
        regard.load(run)


def test_arguments_are_checked(run):
    with pytest.raises(regard.InvalidArgument, match="candidates: wanted 1 or more"):
        learn(run, candidates=0)


def test_a_signature_is_removed_with_a_warning(run, tmp_path, caplog):
    key = tmp_path / "key"
    key.write_bytes(bytes(range(32)))
    key.chmod(0o600)
    assert list(regard.sign(run, key)) == [run]
    learn(run)
    assert caplog.messages == [
        f"{run}: its signature is removed, which was that of other content: regard sign signs it again"
    ]
    with pytest.raises(regard.CheckpointRefused, match="got none"):
        list(regard.verify(run, key))
    assert list(regard.verify(run))


def test_a_damaged_checkpoint_is_not_changed(run):
    (run / "README.md").write_text("another")
    with pytest.raises(regard.CheckpointRefused):
        store.add(run, SHORTLIST, {"a": torch.zeros(1)})
    assert not (run / SHORTLIST).exists()
