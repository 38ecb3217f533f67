// A project's tests, each file on a branch of its own by `neon-testing`.
import { makeNeonTesting } from "neon-testing";
import pg from "pg";
import { expect, test } from "vitest";

const neonTesting = makeNeonTesting({
  apiKey: process.env.API_KEY,
  projectId: process.env.PROJECT_ID,
  endpoint: process.env.ENDPOINT_TYPE,
});
// The package knows Neon's own address alone; its client is asked for another.
neonTesting.api.instance.defaults.baseURL = process.env.API_URL;
const branch = neonTesting();

async function query(text) {
  const client = new pg.Client({
    connectionString: process.env.DATABASE_URL.replace("sslmode=require", ""),
    ssl: { rejectUnauthorized: false },
  });
  await client.connect();
  try {
    return (await client.query(text)).rows;
  } finally {
    await client.end();
  }
}

test("the branch has what its parent has", async () => {
  expect(await query("SELECT name FROM fruit")).toEqual([{ name: "quince" }]);
});

test("what a test changes is its own branch's", async () => {
  await query("INSERT INTO fruit VALUES ('medlar')");
  expect(await query("SELECT count(*)::int FROM fruit")).toEqual([{ count: 2 }]);
  expect(branch().expires_at).toBeTruthy();
});

test("branches that were left over are found by their annotation", async () => {
  const { data } = await neonTesting.api.listProjectBranches({ projectId: process.env.PROJECT_ID });
  expect(data.annotations[branch().id].value["integration-test"]).toBe("true");
});
