"""The levels as data: nodes, dtypes, printers and parsers, numpy interpreters, verification, machines."""
