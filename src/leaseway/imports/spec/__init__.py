"""What a user writes about an import, and every check of it.

model             the structure of a spec
reader            TOML text ─► spec, or all problems with their fields; the spec hash
parser            tables ─► structs, field by field; what `kind = "ocm"` adds to a spec
checks            relations between fields of the source, the resource and the sink
resource_checks   filters, partitions, incremental runs and deletes
guess_spec        a reply ─► a first spec, for `import init`
openapi_sample    an OpenAPI document ─► a reply as it could be
importer_options  the options of `@app.importer` ─► spec
"""
