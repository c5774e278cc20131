"""The kit that peaks and margin share: where frequencies are searched for, and how."""
