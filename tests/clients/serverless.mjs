// Neon's serverless driver as an application uses it: `node serverless.mjs <what> [http|ws]`.
// Exits with 0 where all of it is so.
import assert from "node:assert/strict";
import { Client, Pool, neon, neonConfig } from "@neondatabase/serverless";
import WebSocket from "ws";

const { DATABASE_URL, PROXY, SECURE } = process.env;
const secure = SECURE === "yes";
const pooled = DATABASE_URL.includes("-pooler.");

// What docs/how-to/serverless.md tells users to set.
neonConfig.fetchEndpoint = () => `${secure ? "https" : "http"}://${PROXY}/sql`;
neonConfig.wsProxy = (host, port) => `${PROXY}/v2?address=${host}:${port}`;
neonConfig.useSecureWebSocket = secure;
neonConfig.webSocketConstructor = WebSocket;

const changed = (changes) => Object.assign(new URL(DATABASE_URL), changes).toString();

async function withPool(use) {
  const pool = new Pool({ connectionString: DATABASE_URL });
  try {
    return await use(pool);
  } finally {
    await pool.end();
  }
}

async function failure(promise) {
  try {
    await promise;
  } catch (error) {
    return error;
  }
  assert.fail("nothing was refused");
}

const checks = {
  async queries() {
    const sql = neon(DATABASE_URL);
    const [name, many] = ["wren's", 3];
    assert.deepEqual(await sql`SELECT ${name} AS name, ${many}::int + 1 AS more`, [
      { name: "wren's", more: 4 },
    ]);
    assert.deepEqual(await sql.query("SELECT $1::int AS n", [7]), [{ n: 7 }]);
    const arrays = neon(DATABASE_URL, { arrayMode: true });
    assert.deepEqual(await arrays`SELECT 1, NULL, 'x'`, [[1, null, "x"]]);
    const full = await neon(DATABASE_URL, { fullResults: true })`SELECT 1 AS a WHERE false`;
    assert.equal(full.command, "SELECT");
    assert.equal(full.rowCount, 0);
    assert.deepEqual(full.rows, []);
    assert.equal(full.fields[0].name, "a");
    assert.equal(full.fields[0].dataTypeID, 23);
    const options = neon(DATABASE_URL.replace("?", "?application_name=shop&"));
    assert.deepEqual(await options`SELECT current_setting('application_name') AS name`, [
      { name: "shop" },
    ]);
  },

  async types() {
    const when = new Date("2026-01-02T03:04:05.678Z");
    const given = [when, Buffer.from([0, 255]), { a: [1, null] }, [1, null, 3], ["x,\"y\\\n", "NULL", null]];
    const select =
      "SELECT $1::timestamptz AS t, $2::bytea AS b, $3::jsonb AS j, $4::int[] AS i, $5::text[] AS s," +
      " 9007199254740993::bigint AS big, 1.50::numeric AS n, true AS yes, 1.5::float8 AS f," +
      " '2026-01-02'::date AS d, interval '1 day 2 hours' AS v, NULL AS nothing, '' AS empty," +
      " ARRAY[[1,2],[3,4]] AS deep, 'ä€😀' AS text";
    const overHttp = await neon(DATABASE_URL).query(select, given);
    const overWebSocket = await withPool((pool) => pool.query(select, given));
    // Both ways give the very same.
    assert.deepEqual(overHttp, overWebSocket.rows);
    const [row] = overHttp;
    assert.deepEqual(row.t, when);
    assert.deepEqual([...row.b], [0, 255]);
    assert.deepEqual(row.j, { a: [1, null] });
    assert.deepEqual(row.i, [1, null, 3]);
    assert.deepEqual(row.s, ["x,\"y\\\n", "NULL", null]);
    assert.equal(row.big, "9007199254740993");
    assert.equal(row.n, "1.50");
    assert.deepEqual(row.deep, [[1, 2], [3, 4]]);
    assert.deepEqual([row.yes, row.f, row.nothing, row.empty], [true, 1.5, null, ""]);
    assert.equal(row.text, "ä€😀");
  },

  async transactions() {
    const sql = neon(DATABASE_URL);
    await sql`DROP TABLE IF EXISTS birds`;
    await sql`CREATE TABLE birds (name text PRIMARY KEY)`;
    const [, added, all] = await sql.transaction([
      sql`INSERT INTO birds VALUES ('wren')`,
      sql`INSERT INTO birds VALUES ('heron') RETURNING name`,
      sql`SELECT name FROM birds ORDER BY name`,
    ]);
    assert.deepEqual(added, [{ name: "heron" }]);
    assert.deepEqual(all, [{ name: "heron" }, { name: "wren" }]);
    const error = await failure(
      sql.transaction((tx) => [tx`INSERT INTO birds VALUES ('crow')`, tx`INSERT INTO birds VALUES ('wren')`]),
    );
    assert.equal(error.code, "23505");
    assert.deepEqual(await sql`SELECT count(*)::int AS n FROM birds`, [{ n: 2 }]);
    for (const [isolationLevel, shown] of [
      ["ReadUncommitted", "read uncommitted"],
      ["ReadCommitted", "read committed"],
      ["RepeatableRead", "repeatable read"],
      ["Serializable", "serializable"],
    ]) {
      const [[level], [only]] = await sql.transaction(
        [sql`SHOW transaction_isolation`, sql`SHOW transaction_read_only`],
        { isolationLevel, readOnly: true, deferrable: true },
      );
      assert.deepEqual([level.transaction_isolation, only.transaction_read_only], [shown, "on"]);
    }
    const readOnly = await failure(sql.transaction([sql`DELETE FROM birds`], { readOnly: true }));
    assert.equal(readOnly.code, "25006");
    const arrays = await sql.transaction([sql`SELECT 1`], { arrayMode: true, fullResults: true });
    assert.deepEqual(arrays[0].rows, [[1]]);
  },

  async errors() {
    const sql = neon(DATABASE_URL);
    const missing = await failure(sql`SELECT * FROM nowhere`);
    assert.equal(missing.name, "NeonDbError");
    assert.equal(missing.code, "42P01");
    assert.equal(missing.position, "15");
    assert.equal(missing.severity, "ERROR");
    assert.equal(missing.message, 'relation "nowhere" does not exist');
    assert.equal(missing.routine, "parserOpenTable");
    await sql`DROP TABLE IF EXISTS eggs`;
    await sql`CREATE TABLE eggs (n int CONSTRAINT few CHECK (n < 10))`;
    const tooMany = await failure(sql`INSERT INTO eggs VALUES (10)`);
    assert.deepEqual([tooMany.table, tooMany.constraint, tooMany.schema], ["eggs", "few", "public"]);
    const copying = await failure(sql`COPY eggs FROM STDIN`);
    assert.equal(copying.code, "0A000");
    const overWebSocket = await withPool((pool) => failure(pool.query("SELECT * FROM nowhere")));
    assert.equal(overWebSocket.code, "42P01");
    assert.equal(overWebSocket.position, "15");
  },

  async refusals() {
    for (const [changes, code, words] of [
      [{ password: "wrong" }, "28P01", /^password authentication failed for user "/],
      [{ username: "nobody" }, "28P01", /^password authentication failed for user "nobody"/],
      // PgBouncer has one code for all that it refuses.
      [{ pathname: "/nowhere" }, pooled ? "08P01" : "3D000", /database "nowhere" does not exist/],
    ]) {
      const overHttp = await failure(neon(changed(changes))`SELECT 1`);
      const client = new Client(changed(changes));
      client.on("error", () => {});
      // By default `connect` waits for no answer: the first query tells.
      const overWebSocket = await failure(client.connect().then(() => client.query("SELECT 1")));
      for (const error of [overHttp, overWebSocket]) {
        assert.equal(error.code, code);
        assert.match(error.message, words);
      }
    }
    const jwt = await failure(neon(DATABASE_URL, { authToken: "x.y.z" })`SELECT 1`);
    assert.match(jwt.message, /JWT authorization is not offered by this server/);
  },

  async sessions() {
    const client = new Client(DATABASE_URL);
    await client.connect();
    const other = new Client(DATABASE_URL);
    await other.connect();
    const heard = new Promise((resolve) => client.on("notification", resolve));
    await client.query("LISTEN birds");
    await other.query("SELECT pg_notify('birds', 'a heron')");
    assert.equal((await heard).payload, "a heron");
    await client.query("BEGIN");
    await client.query("CREATE TEMP TABLE nest (n int)");
    await client.query("INSERT INTO nest SELECT generate_series(1, $1)", [20000]);
    await client.query("ROLLBACK");
    assert.equal((await failure(client.query("TABLE nest"))).code, "42P01");
    const named = { name: "twice", text: "SELECT $1::int * 2 AS n" };
    assert.equal((await client.query({ ...named, values: [2] })).rows[0].n, 4);
    assert.equal((await client.query({ ...named, values: [3] })).rows[0].n, 6);
    const big = await client.query("SELECT repeat('x', 5000000) AS big");
    assert.equal(big.rows[0].big.length, 5000000);
    assert.equal((await client.query("SELECT length($1) AS n", ["y".repeat(5000000)])).rows[0].n, 5000000);
    await client.end();
    await other.end();
  },

  async plainly(way) {
    if (way === "ws") {
      const { rows } = await withPool((pool) => pool.query("SELECT 1 AS one"));
      assert.deepEqual(rows, [{ one: 1 }]);
    } else {
      assert.deepEqual(await neon(DATABASE_URL)`SELECT 1 AS one`, [{ one: 1 }]);
    }
  },

  async crowd(way) {
    const numbers = Array.from({ length: 100 }, (_, n) => n);
    const ask = async (query) => {
      const rows = await Promise.all(numbers.map((n) => query("SELECT $1::int AS n FROM pg_sleep(0.05)", [n])));
      assert.deepEqual(rows.map((row) => row.n), numbers);
    };
    if (way === "ws") {
      const pool = new Pool({ connectionString: DATABASE_URL, max: 50 });
      await ask(async (...query) => (await pool.query(...query)).rows[0]);
      await pool.end();
    } else {
      const sql = neon(DATABASE_URL);
      await ask(async (...query) => (await sql.query(...query))[0]);
    }
  },

  // As the driver offers it: what a pool is asked goes by HTTP, where it need not be a session's.
  async poolsOverHttp() {
    neonConfig.poolQueryViaFetch = true;
    const result = await withPool((pool) => pool.query("SELECT $1::int AS n", [5]));
    assert.deepEqual(result.rows, [{ n: 5 }]);
    assert.equal(result.viaNeonFetch, true);
  },

  // A proxy of its own kind, as a string: the driver then adds where it wants to get to.
  async proxiesByName() {
    neonConfig.wsProxy = `${PROXY}/v1`;
    const { rows } = await withPool((pool) => pool.query("SELECT 1 AS one"));
    assert.deepEqual(rows, [{ one: 1 }]);
  },

  // By the endpoint's own host names, which not every resolver knows.
  async byHostName() {
    const lookup = (_host, options, done) =>
      options.all ? done(null, [{ address: "127.0.0.1", family: 4 }]) : done(null, "127.0.0.1", 4);
    neonConfig.webSocketConstructor = class extends WebSocket {
      constructor(url) {
        super(url, { lookup });
      }
    };
    neonConfig.wsProxy = (host) => `${host}:${PROXY.split(":")[1]}/v2`;
    const { rows } = await withPool((pool) => pool.query("SELECT 1 AS one"));
    assert.deepEqual(rows, [{ one: 1 }]);
  },
};

const [what, way] = process.argv.slice(2);
await checks[what](way);
