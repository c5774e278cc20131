"""Columns of tables: numbers, dates and free text in texts, encoding rules, and the encoding of rows by them."""
