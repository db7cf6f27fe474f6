"""Many machines, one fast server: limits in Redis or Valkey."""
