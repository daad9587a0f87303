from ntops.host.families import question

isnan = question("isnan", "NaN")
