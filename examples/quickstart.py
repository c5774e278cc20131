"""From rows on disk to a model: ingest a CSV file, learn features, fit, score, save, load, predict.

Runs as it stands, in a temporary folder, on rows that ship with scikit-learn:

    python examples/quickstart.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from sklearn.datasets import load_breast_cancer

import dkl


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        rows = load_breast_cancer(as_frame=True)
        table = rows.data.assign(diagnosis=rows.target_names[rows.target])
        table.to_csv(Path(folder, "cancer.csv"), index=False)

        ds = dkl.ingest(f"{folder}/cancer.csv", f"{folder}/cancer.zarr", target="diagnosis")
        ds = ds.split({"train": 0.7, "test": 0.3})
        print(ds.describe())

        features = dkl.AlignedFeatures(
            dkl.Gaussian(sigma="median"), n_candidates=2_000, n_features=100, scaling="quantile", random_state=0
        )
        model = dkl.KernelClassifier(features=features, random_state=0).fit(ds["train"])
        print(f"test accuracy {model.score(ds['test']):.3f}")

        model.save(f"{folder}/model.zarr")
        loaded = dkl.load_model(f"{folder}/model.zarr")
        # a data frame holds raw rows: the model brings the rules that encoded the file
        print(loaded.predict(table.drop(columns="diagnosis").head()))


if __name__ == "__main__":
    main()
