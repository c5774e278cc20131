"""The margin game (Bullins, Zhang & Zhang 2018, Algorithms 2 and 3)."""
