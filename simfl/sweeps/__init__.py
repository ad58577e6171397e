"""Many runs from one file, and a run that goes on from another's rounds."""
