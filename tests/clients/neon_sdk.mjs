// `@neon/sdk`: projects, branches, snapshots and refusals, as a program uses it.
// Prints a line of JSON with what it saw; the test judges.
import { createNeonClient, raw } from "@neon/sdk";
import pg from "pg";

const neon = createNeonClient({
  apiKey: process.env.API_KEY,
  baseUrl: process.env.API_URL,
  throwOnError: true,
  wait: { pollIntervalMs: 50 },
});
const seen = {};

async function query(uri, text) {
  const client = new pg.Client({ connectionString: uri });
  await client.connect();
  try {
    return (await client.query(text)).rows;
  } finally {
    await client.end();
  }
}

const { project, connectionString } = await neon.projects.createAndConnect({
  name: "by sdk",
  pooled: false,
});
const projectId = project.id;
const goods = () => query(connectionString, "SELECT number FROM goods").then(([row]) => row.number);
await query(connectionString, "CREATE TABLE goods AS SELECT 1 AS number");
seen.projects = (await neon.projects.list({ search: "by sdk" }).all()).map((one) => one.name);
seen.user = (await neon.user.me()).login;
seen.regions = (await neon.regions.list()).length;
await neon.projects.update({ projectId, name: "renamed" });
seen.renamed = (await neon.projects.get({ projectId })).name;

const [main] = await neon.branches.list({ projectId }).all();
const dev = await neon.branches.createAndConnect({ projectId, name: "dev" });
seen.branch = await query(dev.connectionString, "SELECT number FROM goods");

// A snapshot, and a restore that is looked at before it takes the branch's place.
const snapshot = await neon.snapshots.create({
  projectId,
  branchId: main.id,
  name: "Before the change",
  slug: "before-the-change",
});
for (;;) {
  const running = await neon.operations.list({ projectId }).all();
  if (running.every((one) => one.status === "finished")) break;
  await neon.operations.waitFor({ operations: running.filter((one) => one.status !== "finished") });
}
seen.slug = (await neon.snapshots.list({ projectId }))[0].slug;
await query(connectionString, "UPDATE goods SET number = 2");

async function restored(isCommitted) {
  const previewed = [];
  const branch = await neon.snapshots.restore({
    projectId,
    snapshotId: snapshot.id,
    targetBranchId: main.id,
    preview: async (preview) => {
      previewed.push(preview.id !== main.id, preview.current_state); // as the request was answered
      return isCommitted;
    },
  });
  return { branch, previewed };
}

const aborted = await restored(false);
seen.aborted = aborted.previewed;
seen.after_abort = [await goods(), (await neon.branches.list({ projectId }).all()).length];
const committed = await restored(true);
seen.after_commit = await goods();
const now = await neon.branches.get({ projectId, branchId: committed.branch.id });
seen.committed = [now.name, now.default];
const old = await neon.branches.get({ projectId, branchId: main.id });
seen.replaced = [old.name.startsWith("main_old_"), old.default];

// The default: a new branch that is ready to use.
const copy = await neon.snapshots.restore({ projectId, snapshotId: snapshot.id, name: "copy" });
seen.copy = [copy.name, copy.default];

seen.empty = await Promise.all([
  neon.projects.permissions.list({ projectId }),
  raw.getProjectJwks({ client: neon.client, path: { project_id: projectId } }),
  raw.listProjectVpcEndpoints({ client: neon.client, path: { project_id: projectId } }),
  raw.getAvailablePreloadLibraries({ client: neon.client, path: { project_id: projectId } }),
]).then((answers) => answers.map((one) => Object.values(one.data ?? one).flat()));

const refused = await raw.getProjectAdvisorSecurityIssues({
  client: neon.client,
  path: { project_id: projectId },
});
seen.refused = [refused.error.kind, refused.error.code, refused.error.message];
const archived = await neon.branches.create(
  { projectId, name: "a", archived: true },
  { throwOnError: false },
);
seen.archived = [archived.error.status, archived.error.code];
await neon.projects.delete({ projectId });
const gone = await neon.projects.get({ projectId }, { throwOnError: false });
seen.gone = gone.error.kind;
console.log(JSON.stringify(seen));
