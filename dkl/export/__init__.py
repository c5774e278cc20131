"""Fitted models outside dkl: as ONNX graphs, as scikit-learn objects, and as a light function of one row."""
