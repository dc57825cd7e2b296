"""Tile IR to Kernel IR by passes, CUDA text, compilation, and running it on a GPU or on the CPU."""
