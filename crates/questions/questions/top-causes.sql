-- title: Exits of each class of hosts by cause
-- unit: exits; time from exit to entry in ms; percent of the exits and of the time of the class
-- about: A class is a processor model, a kernel, a host or the value of a label. Emulated hosts are separate classes, because their times do not reflect hardware. Causes are those of vmtax report.
-- param class text = cpu_model: class of hosts: cpu_model, kernel, host, or the name of a label
-- param since date = 0000-01-01: first day to include
-- param limit count = 50: maximum number of rows
WITH counted AS (
  SELECT
    CASE WHEN $class = 'cpu_model' THEN cpu_model
         WHEN $class = 'kernel' THEN kernel
         WHEN $class = 'host' THEN host
         ELSE nullif(split_part(split_part(concat(',', labels), concat(',', $class, '='), 2), ',', 1), '')
    END AS class,
    emulated, isa, reason, detail_kind, ancillary_of IS NOT NULL AS ancillary,
    CASE WHEN detail_kind NOT IN ('page-fault', 'cpuid', 'vmcs-field', 'xen-hypercall', 'port-in') THEN detail END AS detail,
    sum(count) AS exits, sum(time_ns) AS time_ns
  FROM exits
  WHERE date >= $since
  GROUP BY 1, 2, 3, 4, 5, 6, 7
), named AS (
  SELECT c.class, c.emulated, c.exits, c.time_ns,
    CASE WHEN c.ancillary THEN coalesce(r.ancillary, 'nested-ancillary')
         WHEN r.alone THEN r.cause
         WHEN d.cause IS NOT NULL THEN d.cause
         WHEN c.detail_kind = 'ghcb' AND c.detail > 2147483903 THEN 'hypercall'
         WHEN k.cause IS NOT NULL THEN k.cause
         WHEN c.detail_kind = 'none' THEN coalesce(r.bare, 'other')
         ELSE coalesce(r.cause, 'other')
    END AS cause
  FROM counted c
  LEFT JOIN reasons r ON r.isa = c.isa AND r.reason = c.reason
  LEFT JOIN detail_kinds k ON k.detail_kind = c.detail_kind
  LEFT JOIN details d ON d.detail_kind = c.detail_kind AND d.detail = c.detail
), summed AS (
  SELECT class, emulated, cause, sum(exits) AS exits, sum(time_ns) AS time_ns
  FROM named
  GROUP BY class, emulated, cause
)
SELECT class, emulated, cause, exits, time_ns / 1e6 AS time_ms,
  100.0 * exits / sum(exits) OVER of_class AS percent_of_exits,
  CASE WHEN sum(time_ns) OVER of_class > 0 THEN 100.0 * time_ns / sum(time_ns) OVER of_class END AS percent_of_time
FROM summed
WINDOW of_class AS (PARTITION BY class, emulated)
ORDER BY time_ms DESC, exits DESC, class, cause
LIMIT $limit
