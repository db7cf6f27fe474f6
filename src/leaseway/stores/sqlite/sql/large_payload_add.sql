-- Store the payload of a job that was inserted without one. A known id keeps the payload that it has.
INSERT INTO large_payloads (seq, payload) SELECT seq, ? FROM jobs WHERE id = ? AND payload IS NULL
ON CONFLICT (seq) DO NOTHING
