"""Groups and times of rows, and the rules by which rows are held out together."""
