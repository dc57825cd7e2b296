"""eggtile: an e-graph based optimiser from PyTorch programs to measured CUDA kernels."""
