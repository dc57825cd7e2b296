"""`python -m eggtile` is the command line."""

from eggtile.cli import main

main()
