-- Which further steps an exchange must take: a few index probes.
SELECT EXISTS (SELECT 1 FROM jobs WHERE state = 'leased' AND until <= :now) AS expired,
       EXISTS (SELECT 1 FROM jobs WHERE state = 'scheduled' AND run_at <= :now) AS promotable,
       EXISTS (SELECT 1 FROM jobs INDEXED BY jobs_to_cancel WHERE state = 'leased' AND cancel_requested = 1) AS to_cancel,
       EXISTS (SELECT 1 FROM lanes INDEXED BY lanes_needy WHERE needs <> '')
         OR EXISTS (SELECT 1 FROM tenants WHERE is_capped = 1) AS has_gates,
       EXISTS (SELECT 1 FROM lanes WHERE closed_until <= :now) AS reopenable
