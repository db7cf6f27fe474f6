-- Store jobs. NULL: each stands for itself.
SELECT :schema.submit($1::text[], $2::text[], $3::integer[], $4::text::json, $5::text[], $6::text[], $7::boolean, $8::bigint)
