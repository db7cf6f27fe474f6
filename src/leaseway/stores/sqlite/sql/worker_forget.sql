-- Delete workers that were silent for a long time.
DELETE FROM workers WHERE seen_at < :before
