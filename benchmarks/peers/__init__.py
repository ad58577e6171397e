"""The rivals, each in its own environment (`setup.sh`), doing the works through their own APIs."""
