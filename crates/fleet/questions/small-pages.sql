-- title: VMs with memory mapped in 4 KiB pages
-- unit: MiB; percent of the mapped memory
-- about: From KVM's counters of mapped pages (vmtax pages, vmtax import --stats); the mean of a run's readings.
-- param percent number = 10: percent of its memory in pages of 4 KiB that a guest has at least
-- param since date = 0000-01-01: the first day that counts
-- param limit count = 100: rows at most
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
