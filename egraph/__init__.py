"""Terms to egglog and back: laws by family, phases with budgets, reports."""
