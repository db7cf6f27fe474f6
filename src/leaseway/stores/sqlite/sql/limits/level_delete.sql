DELETE FROM levels WHERE definition = :definition
