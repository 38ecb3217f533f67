// Drivers as applications use them: `node drivers.mjs <driver> <connection string> [options]`, the
// options as JSON. Prints who they are connected as.
import { PrismaPg } from "@prisma/adapter-pg";
import { PrismaClient } from "@prisma/client";
import pg from "pg";
import postgres from "postgres";

const QUERY = "SELECT 'reached ' || current_user AS answer";
const [driver, url, given] = process.argv.slice(2);
const options = JSON.parse(given ?? "{}");

const drivers = {
  async pg() {
    const client = new pg.Client({ connectionString: url, ...options });
    await client.connect();
    const { rows } = await client.query(QUERY);
    await client.end();
    return rows;
  },

  async postgres() {
    const sql = postgres(url, { prepare: !url.includes("-pooler"), ...options });
    const rows = await sql.unsafe(QUERY);
    await sql.end();
    return rows;
  },

  async prisma() {
    const client = new PrismaClient({ adapter: new PrismaPg({ connectionString: url, ...options }) });
    const rows = await client.$queryRawUnsafe(QUERY);
    await client.$disconnect();
    return rows;
  },
};

const [{ answer }] = await drivers[driver]();
console.log(answer);
