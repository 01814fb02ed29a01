"""`python -m voxagent`."""

from voxagent.cli import main

main()
