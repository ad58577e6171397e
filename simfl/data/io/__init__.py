"""Building blocks of readers: file parsing and validation, images, PDFs, Arrow tables and the on-disk cache.

A reader parses its files with `records` (or `pdf`, `restricted_pickle`), collects rows with the builder of its task
(`questions`, `classification`, `word_images`) and caches the result with `arrow_store.load_or_build`.
"""
