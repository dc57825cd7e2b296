"""From a saturated e-graph to scheduled kernels: cost model, candidates and their choice, schedules, Tile IR."""
