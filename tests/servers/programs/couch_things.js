// A server with the protocol of CouchDB: node couch_things.js NODE_MODULES PORT
const { createRequire } = require("node:module");

const [modules, port] = process.argv.slice(2);
const use = createRequire(`${modules}/`);
const express = use("express");
const PouchDB = use("pouchdb-core").plugin(use("pouchdb-adapter-memory")).plugin(use("pouchdb-mapreduce"));

const app = express();
app.use("/", use("express-pouchdb")(PouchDB.defaults({ adapter: "memory" }), { mode: "minimumForPouchDB", inMemoryConfig: true }));
app.listen(Number(port), "127.0.0.1");
