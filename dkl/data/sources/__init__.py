"""Sources of rows: memory, Dask, stores, versions, selections."""
