"""Encodings that a fit learns for columns of categories and free text: target means, counts, directions and scores."""
