SELECT level FROM levels WHERE definition = :definition AND name = :name
