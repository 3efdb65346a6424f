SELECT; -- a column that is computed
