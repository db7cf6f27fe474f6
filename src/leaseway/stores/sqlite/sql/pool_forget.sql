-- Delete records of pools that have no supervisor any more.
DELETE FROM pools WHERE written_at < :before
