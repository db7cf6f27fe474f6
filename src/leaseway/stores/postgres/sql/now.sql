-- The server's clock.
SELECT :schema.now_us()
