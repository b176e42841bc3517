-- title: Exits of L1 while it handles exits of L2
-- unit: exits; time from exit to entry in ms; exits of L1 for each exit of L2
-- about: When an exit of L2 is forwarded to L1, L1 exits several times while it handles it. Each row is a reason of such exits of L1, with the reason of the exit of L2.
-- param since date = 0000-01-01: first day to include
-- param limit count = 50: maximum number of rows
WITH handled AS (
  SELECT host, emulated, ancillary_isa, ancillary_of, isa, reason, sum(count) AS exits, sum(time_ns) AS time_ns
  FROM exits
  WHERE ancillary_of IS NOT NULL AND date >= $since
  GROUP BY host, emulated, ancillary_isa, ancillary_of, isa, reason
), nested AS (
  SELECT host, emulated, isa, reason, sum(count) AS exits
  FROM exits
  WHERE level = 'L2' AND date >= $since
  GROUP BY host, emulated, isa, reason
)
SELECT h.host, h.emulated, coalesce(r2.name, CAST(h.ancillary_of AS VARCHAR)) AS exit_of_l2,
  coalesce(r1.name, CAST(h.reason AS VARCHAR)) AS exit_of_l1, h.exits, h.time_ns / 1e6 AS time_ms,
  n.exits AS exits_of_l2, CAST(h.exits AS DOUBLE) / CAST(n.exits AS DOUBLE) AS each_l2_exit
FROM handled h
LEFT JOIN nested n ON n.host = h.host AND n.emulated = h.emulated AND n.isa = h.ancillary_isa
  AND n.reason = h.ancillary_of
LEFT JOIN reasons r1 ON r1.isa = h.isa AND r1.reason = h.reason
LEFT JOIN reasons r2 ON r2.isa = h.ancillary_isa AND r2.reason = h.ancillary_of
ORDER BY time_ms DESC, h.exits DESC, h.host, exit_of_l2, exit_of_l1
LIMIT $limit
