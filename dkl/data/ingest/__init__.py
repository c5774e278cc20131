"""From files to rows: readers of formats, encodings, shuffling."""
