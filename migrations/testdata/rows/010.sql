SELECT; -- an index only
