"""Analysis of finished runs: repeat rounds and single client updates, compare two runs, test a privacy mechanism."""
