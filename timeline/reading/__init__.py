"""Reading traces of any kind into a `Trace`: parts, merged files, parts that still grow, traces of other tools."""
