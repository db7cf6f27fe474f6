INSERT INTO leaseway_import_version (version)
VALUES (:version)
