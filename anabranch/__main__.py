"""`python -m anabranch` is the command `anabranch`."""

from .cli import main

main()
