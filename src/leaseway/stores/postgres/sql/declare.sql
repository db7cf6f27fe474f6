-- Create or change schedules.
SELECT :schema.declare_schedules($1, $2)
