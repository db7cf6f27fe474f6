INSERT INTO leaseway_quarantine (run, shard, page, position, external_id, code, problem, document, first_seen)
VALUES (:run, :shard, :page, :position, :external_id, :code, :problem, :document, :first_seen)
