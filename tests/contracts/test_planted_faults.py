"""Tests of the contracts: each must fail on an implementation with a planted fault."""

from functools import partial

import pytest
import torch
from torch.autograd.gradcheck import GradcheckError, gradcheck

from support import attention_contracts as contracts
from support.family import Case, oracle, oracle_weights

# contract, fault, a case that shows it
PLANTED = [
    (contracts.equals_definition, "upper-left", Case(mask="causal")),
    (contracts.equals_definition, "mask inverted", Case(mask="padding")),
    (contracts.equals_definition, "no scale", Case()),
    (contracts.equals_definition, "window off by one", Case(mask="window")),
    (contracts.equals_definition, "bias ignored", Case(mask="bias")),
    (contracts.equals_definition, "soft mask", Case(mask="scattered")),
    (contracts.equals_definition, "no gradient to the key", Case()),
    (
        contracts.equals_definition,
        "no gradient to the key",
        Case(score="additive", dtype=torch.bfloat16),
    ),
    (contracts.masked_rows_give_zeros, "nan when masked", Case(mask="fully masked")),
    (contracts.masked_rows_give_zeros, "soft mask", Case(mask="fully masked")),
    (contracts.future_changes_nothing, "future leaks", Case(mask="causal")),
    (contracts.future_changes_nothing, "sees one ahead", Case(mask="causal")),
    (contracts.padding_changes_nothing, "soft mask", Case()),
    (contracts.padding_changes_nothing, "length leaks", Case(dtype=torch.bfloat16)),
    (contracts.order_of_keys_changes_nothing, "position dependent", Case()),
    (contracts.capturing_changes_no_bit, "notices captures", Case()),
    (contracts.agrees_with_torch, "no scale", Case()),
    (contracts.agrees_with_torch, "no gradient to the key", Case()),
    (contracts.agrees_with_torch, "mask inverted", Case(mask="padding")),
    (contracts.weights_are_exact, "do not sum to one", Case(mask="causal")),
    (contracts.weights_are_exact, "soft mask", Case(mask="padding")),
    (contracts.weights_are_exact, "upper-left", Case(mask="causal")),
    (contracts.weights_are_exact, "no scale", Case()),
]


@pytest.mark.parametrize(
    ("contract", "fault", "case"), PLANTED, ids=lambda x: getattr(x, "__name__", str(x))[:40]
)
def test_planted_fault_is_found(contract, fault, case):
    right = oracle_weights if contract is contracts.weights_are_exact else oracle
    contract(right, case)  # without the fault the same case passes
    with pytest.raises(AssertionError):
        contract(partial(right, fault=fault), case)


def test_every_contract_has_a_planted_fault():
    named = {
        f
        for name, f in vars(contracts).items()
        if callable(f) and getattr(f, "__module__", "") == contracts.__name__
    }
    helpers = {
        contracts.close,
        contracts.gradients,
        contracts.captured_weights,
        contracts.definition,
    }
    helpers |= {contracts.Definition, contracts._definition}
    assert named - helpers == {contract for contract, _, _ in PLANTED}


def test_gradcheck_finds_a_missing_gradient():
    case = Case(dtype=torch.float64)
    with pytest.raises(GradcheckError):
        gradcheck(
            partial(oracle, fault="no gradient to the key"),
            (case.query, case.key, case.value),
            fast_mode=True,
        )
