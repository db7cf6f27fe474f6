// Runs Agenda: node drain.mjs URL COUNT SETUP-AS-JSON. It inserts COUNT jobs, prints "ready", waits for a line on stdin, runs
// the jobs, and prints its figures as JSON. Starting and inserting are not measured.
import { once } from "node:events";

const [url, countText, setupText, modules] = process.argv.slice(2);
const { Agenda } = await import(`${modules}/agenda/dist/index.js`);
const { MongoBackend } = await import(`${modules}/@agendajs/mongo-backend/dist/index.js`);
const { MongoClient } = await import(`${modules}/mongodb/lib/index.js`);

const count = Number(countText);
const setup = JSON.parse(setupText);
const client = await MongoClient.connect(url, { writeConcern: { w: "majority", journal: true } });
const agenda = new Agenda({ backend: new MongoBackend({ mongo: client.db() }), ...setup });
let left = count;
let finish;
const finished = new Promise((resolve) => { finish = resolve; });
agenda.define("noop", async () => {});
agenda.on("complete", () => { left -= 1; if (left === 0) finish(); });
agenda.on("error", (error) => { console.error(error); process.exit(1); });
await agenda.ready;
const jobs = client.db().collection("agendaJobs");
const text = "x".repeat(189);
const at = new Date();
for (let first = 0; first < count; first += 1000) {
  const size = Math.min(1000, count - first);
  // What `agenda.now` writes, in bulk, because submitting is not measured.
  await jobs.insertMany(Array.from({ length: size }, () => ({ name: "noop", type: "normal", priority: 0, nextRunAt: at, data: { text } })));
}
console.log("ready");
await once(process.stdin, "data");
const begun = process.hrtime.bigint();
await agenda.start();
await finished;
const ended = process.hrtime.bigint();
// `complete` is emitted after the write of the result.
const open = await jobs.countDocuments({ lastFinishedAt: { $exists: false } });
console.log(JSON.stringify({ count: count - open, begun_ns: Number(begun), ended_ns: Number(ended) }));
process.exit(0);
