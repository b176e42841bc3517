SELECT e.* EXCLUDE (reason, detail, ancillary_of),
  e.reason AS reason_code,
  e.detail AS detail_value,
  coalesce(r.name, CASE WHEN e.isa IN ('svm', 'arm64') THEN concat('0x', lower(to_hex(e.reason))) ELSE CAST(e.reason AS VARCHAR) END) AS reason,
  CASE WHEN e.detail_kind = 'none' THEN NULL
       WHEN e.detail_kind = 'cpuid' THEN concat('0x',
         coalesce(nullif(ltrim(substr(lpad(lower(to_hex(e.detail)), 16, '0'), 1, 8), '0'), ''), '0'),
         CASE WHEN CAST(e.detail AS DECIMAL(20, 0)) % 4294967296 = 0 THEN ''
              ELSE concat(' sub-leaf ', CAST(CAST(CAST(e.detail AS DECIMAL(20, 0)) % 4294967296 AS BIGINT) AS VARCHAR))
         END)
       WHEN d.name IS NOT NULL THEN d.name
       WHEN e.detail_kind = 'overflow' THEN 'more'
       WHEN e.detail_kind IN ('hypercall', 'xen-hypercall', 'halt', 'wait') THEN CAST(e.detail AS VARCHAR)
       WHEN e.detail_kind IN ('cr-read', 'cr-write') THEN concat('CR', CAST(e.detail AS VARCHAR))
       WHEN e.detail_kind IN ('to-private', 'to-shared', 'pre-fault') THEN concat(CAST(e.detail AS VARCHAR), ' bytes')
       WHEN e.detail_kind IN ('page-fault', 'mapped-fault', 'mapped-fetch', 'memory-fault') THEN concat('0x', lower(to_hex(e.detail)), ' (2 MiB)')
       WHEN e.detail_kind IN ('sysreg-read', 'sysreg-write') AND e.detail < 65536 THEN concat(
         'S', CAST(CAST(e.detail AS BIGINT) >> 14 AS VARCHAR), '_', CAST((CAST(e.detail AS BIGINT) >> 11) & 7 AS VARCHAR),
         '_C', CAST((CAST(e.detail AS BIGINT) >> 7) & 15 AS VARCHAR), '_C', CAST((CAST(e.detail AS BIGINT) >> 3) & 15 AS VARCHAR),
         '_', CAST(CAST(e.detail AS BIGINT) & 7 AS VARCHAR))
       ELSE concat('0x', lower(to_hex(e.detail)))
  END AS detail,
  CASE WHEN e.ancillary_of IS NOT NULL THEN coalesce(r.ancillary, 'nested-ancillary')
       WHEN r.alone THEN r.cause
       WHEN d.cause IS NOT NULL THEN d.cause
       WHEN e.detail_kind = 'ghcb' AND e.detail > 2147483903 THEN 'hypercall'
       WHEN k.cause IS NOT NULL THEN k.cause
       WHEN e.detail_kind = 'none' THEN coalesce(r.bare, 'other')
       ELSE coalesce(r.cause, 'other')
  END AS cause,
  CASE WHEN e.ancillary_of IS NULL THEN NULL
       ELSE coalesce(a.name, CASE WHEN e.ancillary_isa IN ('svm', 'arm64') THEN concat('0x', lower(to_hex(e.ancillary_of))) ELSE CAST(e.ancillary_of AS VARCHAR) END)
  END AS ancillary_of
FROM exits e
LEFT JOIN reasons r ON r.isa = e.isa AND r.reason = e.reason
LEFT JOIN reasons a ON a.isa = e.ancillary_isa AND a.reason = e.ancillary_of
LEFT JOIN detail_kinds k ON k.detail_kind = e.detail_kind
LEFT JOIN details d ON d.detail_kind = e.detail_kind AND d.detail = e.detail
