-- Compare and set. A repeated write finds its own version.
UPDATE pools SET version = :version, record = :record, written_at = :now
 WHERE name = :name AND version IN (:seen, :version)
