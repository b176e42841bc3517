-- title: vCPUs with the highest tax
-- unit: tax and contention in percent of the known time that the vCPU did not halt; exits for each second of it; time in ms
-- about: Tax is the exit tax of vmtax report: time of exits in the kernel and in the VMM as a share of the time that is known and not halted. Contention is the time preempted during exits as a share of the same.
-- param since date = 0000-01-01: first day to include
-- param least number = 0.001: minimum time not halted, s
-- param limit count = 50: maximum number of rows
WITH counted AS (
  SELECT run, vm, coalesce(vcpu, 4294967295) AS vcpu, sum(count) AS exits, sum(time_ns) AS exit_ns
  FROM exits
  WHERE date >= $since
  GROUP BY run, vm, coalesce(vcpu, 4294967295)
), split AS (
  SELECT host, date, run, vm, coalesce(vcpu, 4294967295) AS vcpu, emulated,
    CAST(sum(exit_kernel_ns) + sum(exit_user_ns) AS DOUBLE) AS spent,
    CAST(sum(preempted_ns) AS DOUBLE) AS preempted,
    CAST(sum(wall_ns) - sum(halted_ns) - sum(unknown_ns) AS DOUBLE) AS awake
  FROM "time"
  WHERE date >= $since
  GROUP BY host, date, run, vm, coalesce(vcpu, 4294967295), emulated
  HAVING sum(wall_ns) > sum(halted_ns) + sum(unknown_ns)
)
SELECT s.host, s.date, s.run, s.vm, nullif(s.vcpu, 4294967295) AS vcpu, s.emulated,
  100 * s.spent / s.awake AS tax, 100 * s.preempted / s.awake AS contention, 1e9 * coalesce(c.exits, 0) / s.awake AS exits_per_second,
  coalesce(c.exit_ns, 0) / 1e6 AS exit_ms, s.awake / 1e6 AS awake_ms
FROM split s
LEFT JOIN counted c ON c.run = s.run AND c.vm = s.vm AND c.vcpu = s.vcpu
WHERE s.awake >= 1e9 * $least
ORDER BY tax DESC, s.run, s.vm, vcpu
LIMIT $limit
