"""The choice between models: tune, compare, sweep."""
