SELECT version
  FROM leaseway_import_version
