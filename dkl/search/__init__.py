"""The search for hyper-parameters: what is tried next, how a trial is judged, where trials run."""
