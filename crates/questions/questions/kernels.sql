-- title: Kernels that added exits to an operation
-- unit: exits per operation
-- about: From lab runs. Each kernel is compared with the base kernel for the same operation on the same processor model, and listed if the difference is at least the threshold. The default base is the kernel of the earliest run.
-- param base text = : base kernel
-- param least number = 0.01: minimum of added exits per operation
-- param limit count = 100: maximum number of rows
WITH operations AS (
  SELECT run, kernel, cpu_model, emulated, workload, min(date) AS date, sum(value) AS operations
  FROM bench
  WHERE metric = 'operations'
  GROUP BY run, kernel, cpu_model, emulated, workload
), counted AS (
  SELECT e.run, v.name AS workload, sum(e.exits) AS exits
  FROM (SELECT run, vm, sum(count) AS exits FROM exits GROUP BY run, vm) e
  JOIN vms v ON v.run = e.run AND v.vm = e.vm
  GROUP BY e.run, v.name
), each_kernel AS (
  SELECT o.kernel, o.cpu_model, o.emulated, o.workload, sum(o.operations) AS operations,
    sum(coalesce(c.exits, 0)) / sum(o.operations) AS per_operation
  FROM operations o
  LEFT JOIN counted c ON c.run = o.run AND c.workload = o.workload
  GROUP BY o.kernel, o.cpu_model, o.emulated, o.workload
), base AS (
  SELECT coalesce(nullif($base, ''), min(kernel)) AS kernel
  FROM operations
  WHERE date = (SELECT min(date) FROM operations)
)
SELECT k.workload, k.cpu_model, k.emulated, b.kernel AS base, k.kernel, b.per_operation AS exits_before,
  k.per_operation AS exits_now, k.per_operation - b.per_operation AS added
FROM each_kernel k
JOIN each_kernel b ON b.workload = k.workload AND b.cpu_model = k.cpu_model AND b.emulated = k.emulated
JOIN base ON base.kernel = b.kernel
WHERE k.kernel <> b.kernel AND k.per_operation - b.per_operation >= $least
ORDER BY added DESC, k.workload, k.cpu_model, k.kernel
LIMIT $limit
