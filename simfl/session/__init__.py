"""One run of an experiment: its options, preparation, open resources, progress, callbacks, evaluation and signals."""
