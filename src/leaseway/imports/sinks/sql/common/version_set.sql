UPDATE leaseway_import_version
   SET version = :version
