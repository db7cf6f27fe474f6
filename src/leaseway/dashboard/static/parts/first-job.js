/** The command that submits a first job from the user's machine. */

import { me } from "../lib/api.js";

export function submitting() {
  const key = me()?.csrf_token ? " -H 'Authorization: Bearer lw_…'" : "";
  const body = '{"kind": "hello", "arguments": {"name": "world"}}';
  return `curl ${location.origin}/v1/jobs${key} -H 'Content-Type: application/json' -d '${body}'`;
}
