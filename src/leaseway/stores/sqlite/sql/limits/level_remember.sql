-- After a change of the definition it is not known yet when these levels can be deleted.
UPDATE levels SET idle_at = NULL WHERE definition = :definition
