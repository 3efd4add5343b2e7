"""Operations of `flow` as Triton kernels, a single launch each, for GPUs. What they compute is said there.

Blocks are fixed: an autotuner would choose, and so round, differently from run to run. Importing this fails where there
is no Triton; in its interpreter (TRITON_INTERPRET=1) the kernels run on a CPU, for tests.
"""

from labelflow.kernels.launch import DEVICES
from labelflow.kernels.self_attention import attend, attention, can_attend
from labelflow.kernels.windows import aggregate, convolve

__all__ = ["DEVICES", "aggregate", "attend", "attention", "can_attend", "convolve"]
