"""eggtile: an e-graph based optimiser from PyTorch programs to measured CUDA kernels."""

import gc

gc.disable()  # collections while torch is imported free nothing and take 0.3 s
import torch  # noqa: E402, F401

gc.enable()
