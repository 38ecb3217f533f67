// Clients of node-postgres for `tests.benchmarks.sleep`, which says who they are by `name=json`;
// they stop when their standard input ends, and say how they fared.

import pg from "pg";

const given = Object.fromEntries(
  process.argv.slice(2).map((one) => {
    const at = one.indexOf("=");
    return [one.slice(0, at), JSON.parse(one.slice(at + 1))];
  }),
);
const errors = [];
let transactions = 0;
let slowest = 0;
let isStopped = false;

async function connect() {
  const { host, port, user, password, database, options } = given;
  const client = new pg.Client({ host, port, user, password, database, options });
  client.on("error", (error) => errors.push(`between transactions: ${error.code} ${error.message}`));
  await client.connect();
  return client;
}

async function transact(client) {
  const began = performance.now();
  const number = Math.floor(Math.random() * 1000);
  await client.query("BEGIN");
  const statement = { text: "SELECT $1::int + 1 AS next", values: [number] };
  const { rows } = await client.query(given.prepares ? { name: "next", ...statement } : statement);
  if (rows[0].next !== number + 1) throw new Error(`${rows[0].next} after ${number}`);
  await client.query("COMMIT");
  transactions += 1;
  slowest = Math.max(slowest, performance.now() - began);
}

async function work(client) {
  while (!isStopped) {
    try {
      await transact(client);
    } catch (error) {
      errors.push(`${error.code} ${error.message}`);
      client = await connect();
    }
    const until = performance.now() + 2000 + Math.random() * 4000;
    while (!isStopped && performance.now() < until) {
      await new Promise((done) => setTimeout(done, 100));
    }
  }
  await client.end();
}

const clients = [];
for (let number = 0; number < given.clients; number += 1) clients.push(await connect());
console.log("connected");
process.stdin.resume();
process.stdin.on("end", () => {
  isStopped = true;
});
await Promise.all(clients.map(work));
console.log(JSON.stringify({ transactions, errors, slowest_ms: slowest }));
