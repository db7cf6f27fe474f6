SELECT definition, declared, version FROM definitions WHERE name = :name
