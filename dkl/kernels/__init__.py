"""The arithmetic of one block that several methods share, on a CPU and on a GPU. No Dask."""
