"""The contracts between the layers: blocks, records of a pass, drivers, sources of rows. No Dask."""
