"""Other simulators, each in an environment of its own (`setup.sh`), which run the works through their own APIs."""
