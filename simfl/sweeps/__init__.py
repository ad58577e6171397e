"""Many runs from one file, and runs forked from the rounds of another run."""
