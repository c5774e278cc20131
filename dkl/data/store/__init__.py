"""What is on disk: arrays, manifests, versions, and how they become visible whole or not at all."""
