// The calls of neondatabase/create-branch-action and schema-diff-action, in their order and with
// their fields. Prints a line of JSON with what the action's outputs would be.
import { createApiClient } from "@neondatabase/api-client";

const { API_KEY: apiKey, API_URL: baseURL, PROJECT_ID: projectId, BRANCH: name } = process.env;
const api = createApiClient({ apiKey, baseURL, timeout: 10_000 });

async function find(search) {
  const { data } = await api.listProjectBranches({ projectId, search, limit: 10000 });
  return data.branches.find((one) => one.name === search || one.id === search);
}

let branch = await find(name);
const created = !branch;
if (created) {
  const parent = await find("main");
  const answer = await api.createProjectBranch(projectId, {
    endpoints: [{ type: "read_write", suspend_timeout_seconds: 0 }],
    branch: {
      name,
      parent_id: parent.id,
      init_source: process.env.SCHEMA_ONLY ? "schema-only" : undefined,
      expires_at: process.env.EXPIRES_AT,
    },
    annotation_value: {
      "github-commit-repo": "example/shop",
      "github-commit-message": "Add a table\n\nWith words, \"quotes\"\tand more lines.",
      "github-pr-number": "7",
    },
  });
  branch = answer.data.branch;
}
const { endpoints } = (await api.listProjectBranchEndpoints(projectId, branch.id)).data;
const endpoint = endpoints.find((one) => one.type === "read_write");
await api.getProjectBranchDatabase(projectId, branch.id, "neondb");
await api.getProjectBranchRole(projectId, branch.id, "neondb_owner");
const { password } = (
  await api.getProjectBranchRolePassword(projectId, branch.id, "neondb_owner")
).data;
const missing = {};
for (const [what, ask] of Object.entries({
  auth: () => api.getNeonAuth(projectId, branch.id),
  data_api: () => api.getProjectBranchDataApi(projectId, branch.id, "neondb"),
})) {
  try {
    await ask();
  } catch (error) {
    missing[what] = [error.response.status, error.response.data.message];
  }
}
const { branches } = (await api.listProjectBranches({ projectId })).data;
const compared = branches.find((one) => one.name === name);
const schemas = [];
for (const branchId of [compared.id, compared.parent_id].filter(Boolean)) {
  const { data } = await api.getProjectBranchSchema({ projectId, branchId, db_name: "neondb" });
  schemas.push(data.sql);
}
console.log(
  JSON.stringify({
    created,
    branch_id: branch.id,
    expires_at: branch.expires_at,
    host: endpoint.host,
    host_pooled: endpoint.host.replace(endpoint.id, `${endpoint.id}-pooler`),
    password,
    missing,
    same_schema: schemas[0] === schemas[1],
  }),
);
