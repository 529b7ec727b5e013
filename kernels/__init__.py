"""The probes' formulas in plain torch, and three ops on the device, each behind the door of its folder.

`mlp_score`, `min_gru_step` and `min_gru_scan` are what training, replay and engines without a GPU compute,
and what the kernels are compared with. The ops are `boundary_score`, `stream_score` and
`decide_and_force`; their functions take `impl="auto"|"torch"|"triton"`: "torch" is the specification, "auto"
takes Triton on a GPU.

>>> from desist.kernels.boundary_score import boundary_score, mlp_score_rows
>>> from desist.kernels.decide_and_force import decide, force
>>> from desist.kernels.stream_score import stream_score
"""

from desist.kernels.choice import Impl
from desist.kernels.reference import Layer, MinGRUWeights, min_gru_scan, min_gru_step, mlp_score
from desist.kernels.rows import Rows

__all__ = ["Impl", "Layer", "MinGRUWeights", "Rows", "min_gru_scan", "min_gru_step", "mlp_score"]
