SELECT definition, version FROM definitions ORDER BY name
