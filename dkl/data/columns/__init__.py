"""Columns of tables: what texts are (numbers, points in time, free text), their rules, and rows encoded by them."""
