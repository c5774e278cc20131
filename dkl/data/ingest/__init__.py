"""Files to rows: readers, encodings, shuffling."""
