"""Steps of columns, hinges and their products, found in fully corrective rounds on histograms of the rows."""
