-- title: Hosts whose tax rose since a day
-- unit: tax in percent of the known time that vCPUs did not halt; rises in points of percent
-- about: Each run of a host is one sample of its tax. Welch's test compares the mean of the runs from the day on with the mean of those before: a host is listed if its rise is larger than the quantile of Student's t (99 percent, one-sided, degrees of freedom by Welch and Satterthwaite, rounded down to the table in the query) times its standard error. So one in a hundred unchanged hosts is listed by chance, and more if the runs of a host are not independent. at_least_points is the lower end of that interval. A host needs two runs on either side.
-- param since date = 2026-01-01: first day of the later period
-- param limit count = 100: maximum number of rows
WITH sample AS (
  SELECT host, emulated, date >= $since AS later,
    CAST(sum(exit_kernel_ns) + sum(exit_user_ns) AS DOUBLE)
      / CAST(sum(wall_ns) - sum(halted_ns) - sum(unknown_ns) AS DOUBLE) AS tax
  FROM "time"
  GROUP BY host, emulated, date, run
  HAVING sum(wall_ns) > sum(halted_ns) + sum(unknown_ns)
), sides AS (
  SELECT host, emulated,
    CAST(sum(CASE WHEN later THEN 0 ELSE 1 END) AS DOUBLE) AS n0,
    CAST(sum(CASE WHEN later THEN 1 ELSE 0 END) AS DOUBLE) AS n1,
    avg(CASE WHEN later THEN NULL ELSE tax END) AS mean0,
    avg(CASE WHEN later THEN tax END) AS mean1,
    var_samp(CASE WHEN later THEN NULL ELSE tax END) AS var0,
    var_samp(CASE WHEN later THEN tax END) AS var1
  FROM sample
  GROUP BY host, emulated
), welch AS (
  SELECT host, emulated, n0, n1, mean0, mean1, mean1 - mean0 AS rise, sqrt(var0 / n0 + var1 / n1) AS error,
    CASE WHEN var0 + var1 > 0 THEN
      (var0 / n0 + var1 / n1) * (var0 / n0 + var1 / n1)
        / ((var0 / n0) * (var0 / n0) / (n0 - 1) + (var1 / n1) * (var1 / n1) / (n1 - 1))
    ELSE 1 END AS freedom
  FROM sides
  WHERE n0 >= 2 AND n1 >= 2
), judged AS (
  SELECT *,
    CASE WHEN freedom < 2 THEN 31.821 WHEN freedom < 3 THEN 6.965 WHEN freedom < 4 THEN 4.541
         WHEN freedom < 5 THEN 3.747 WHEN freedom < 6 THEN 3.365 WHEN freedom < 7 THEN 3.143
         WHEN freedom < 8 THEN 2.998 WHEN freedom < 9 THEN 2.896 WHEN freedom < 10 THEN 2.821
         WHEN freedom < 15 THEN 2.764 WHEN freedom < 20 THEN 2.602 WHEN freedom < 30 THEN 2.528
         WHEN freedom < 60 THEN 2.457 ELSE 2.390 END AS quantile
  FROM welch
)
SELECT host, emulated, CAST(n0 AS BIGINT) AS runs_before, CAST(n1 AS BIGINT) AS runs_since,
  100 * mean0 AS tax_before, 100 * mean1 AS tax_since, 100 * rise AS rise_points, 100 * error AS standard_error,
  freedom AS degrees_of_freedom,
  100 * (rise - quantile * error) AS at_least_points
FROM judged
WHERE rise > quantile * error
ORDER BY at_least_points DESC, host
LIMIT $limit
