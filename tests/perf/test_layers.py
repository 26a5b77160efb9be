"""The ops of a pass against the closed forms of the model: what is multiplied is what the parameters say."""

from __future__ import annotations

import numpy as np
import pytest

from pddplan.llm.catalogue import load_model, model_ids
from pddplan.llm.flops import head_flops, linear_flops_per_token
from pddplan.perf.layers import token_ops
from tests.perf.instances import instance

TOKENS = 512.0
# compressors, index weights and hyper-connections of V4 are no ops of their own
MISSING = {"deepseek-v4-pro": 0.02, "deepseek-v4-flash": 0.03}


@pytest.mark.parametrize("name", model_ids())
def test_ops_multiply_every_active_weight_once(name: str) -> None:
    """Sum over ops = tokens x linear FLOPs + one head; norms and vectors (below 0.1 %) are streams, not products."""
    model = load_model(name)
    ops = token_ops(instance("h200", model), np.array([TOKENS]), np.array([1.0]))
    done = sum(float(op.count * op.flops[0]) for op in ops)
    want = TOKENS * linear_flops_per_token(model) + head_flops(model)
    assert 1 - MISSING.get(name, 1e-3) <= done / want <= 1 + 1e-9
