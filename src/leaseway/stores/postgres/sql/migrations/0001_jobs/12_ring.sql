-- Tell the workers that there may be work. Called from outside the transaction that made the work: a NOTIFY makes its
-- own transaction wait in line with every other that has one. A hint needs no disk, so this one does not wait for it.
CREATE FUNCTION ring() RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
  PERFORM set_config('synchronous_commit', 'off', true);
  PERFORM pg_notify('leaseway.' || current_schema(), '');
  PERFORM fold(1000);
END $$;
