/** The first job, from the machine of whoever reads it. */

import { me } from "../lib/api.js";

export function submitting() {
  const key = me()?.csrf_token ? " -H 'Authorization: Bearer lw_…'" : "";
  const body = '{"kind": "hello", "arguments": {"name": "world"}}';
  return `curl ${location.origin}/v1/jobs${key} -H 'Content-Type: application/json' -d '${body}'`;
}
