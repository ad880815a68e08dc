"""Sweeps over grids of parameters: grid, workers, store of cells, table and map."""
