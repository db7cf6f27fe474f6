-- Open the lanes whose time has come, a bounded number at a time. Of the first, tenants take turns.
UPDATE lanes SET closed_until = NULL, closed_why = NULL
 WHERE id IN (SELECT id
                FROM (SELECT *, row_number() OVER (PARTITION BY tenant ORDER BY closed_until, id) AS turn
                        FROM (SELECT id, tenant, closed_until FROM lanes
                               WHERE closed_until <= :now ORDER BY closed_until, id LIMIT :backlog))
               ORDER BY turn, closed_until, id LIMIT :limit)
