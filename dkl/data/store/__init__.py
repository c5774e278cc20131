"""The format of stores on disk: arrays, manifests, versions, and atomic writes."""
