SELECT; -- indexes only
