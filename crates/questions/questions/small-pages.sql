-- title: VMs with memory mapped in 4 KiB pages
-- unit: MiB; percent of the mapped memory
-- about: From KVM's counters of mapped pages (vmtax doctor --pages, vmtax import --stats); the mean of a run's readings.
-- param percent number = 10: minimum percentage of memory in 4 KiB pages
-- param since date = 0000-01-01: first day to include
-- param limit count = 100: maximum number of rows
WITH reading AS (
  SELECT host, date, run, vm, name, avg(value) AS pages
  FROM stats
  WHERE name IN ('pages_4k', 'pages_2m', 'pages_1g') AND date >= $since
  GROUP BY host, date, run, vm, name
), sizes AS (
  SELECT host, date, run, vm,
    sum(CASE WHEN name = 'pages_4k' THEN pages / 256 ELSE 0 END) AS small_mib,
    sum(CASE WHEN name = 'pages_4k' THEN pages / 256 WHEN name = 'pages_2m' THEN pages * 2 ELSE pages * 1024 END)
      AS mapped_mib
  FROM reading
  GROUP BY host, date, run, vm
)
SELECT host, date, run, vm, small_mib, mapped_mib, 100 * small_mib / mapped_mib AS percent_small
FROM sizes
WHERE mapped_mib > 0 AND 100 * small_mib / mapped_mib >= $percent
ORDER BY small_mib DESC, host, run, vm
LIMIT $limit
