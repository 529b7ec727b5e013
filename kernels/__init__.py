"""Probe kernels: from the hidden states of a step to scores, decisions and forced logits.

`boundary_score`, `mlp_score_rows`, `stream_score`, `decide` and `force` take `impl="auto"|"torch"|"triton"`:
"torch" is the specification, "auto" takes Triton on a GPU. Each comes with its tables and states from the
folder of its name. `mlp_score`, `min_gru_step` and `min_gru_scan` are the probes' formulas in plain torch:
what training, replay and engines without a GPU compute, and what the kernels are compared with.
"""

from desist.kernels.boundary_score import boundary_score, mlp_score_rows
from desist.kernels.choice import Impl
from desist.kernels.decide_and_force import decide, force
from desist.kernels.reference import Layer, MinGRUWeights, min_gru_scan, min_gru_step, mlp_score
from desist.kernels.rows import Rows
from desist.kernels.stream_score import stream_score

__all__ = [
    "Impl",
    "Layer",
    "MinGRUWeights",
    "Rows",
    "boundary_score",
    "decide",
    "force",
    "min_gru_scan",
    "min_gru_step",
    "mlp_score",
    "mlp_score_rows",
    "stream_score",
]
