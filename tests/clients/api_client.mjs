// `@neondatabase/api-client`: a project from its creation to its end, as a program uses it.
// Prints a line of JSON with what it saw; the test judges.
import { createApiClient } from "@neondatabase/api-client";

const api = createApiClient({ apiKey: process.env.API_KEY, baseURL: process.env.API_URL });
const seen = {};

async function finished(answer) {
  for (const operation of answer.data.operations) {
    let now = operation;
    while (["scheduling", "running"].includes(now.status)) {
      await new Promise((resolve) => setTimeout(resolve, 50));
      ({ operation: now } = (await api.getProjectOperation(operation.project_id, operation.id)).data);
    }
    if (now.status !== "finished") throw new Error(JSON.stringify(now));
  }
  return answer.data;
}

const created = await finished(await api.createProject({ project: { name: "by api-client" } }));
const projectId = created.project.id;
seen.projects = (await api.listProjects({ limit: 10 })).data.projects.map((one) => one.name);
seen.shared = (await api.listSharedProjects({})).data.projects;
seen.user = (await api.getCurrentUserInfo()).data.login;
seen.regions = (await api.getActiveRegions()).data.regions.length;
seen.organizations = (await api.getCurrentUserOrganizations()).data.organizations.length;
await api.updateProject(projectId, { project: { name: "renamed" } });
seen.renamed = (await api.getProject(projectId)).data.project.name;

const expires = new Date(Date.now() + 3_600_000).toISOString();
const branch = await finished(
  await api.createProjectBranch(projectId, {
    branch: { name: "dev", expires_at: expires },
    endpoints: [{ type: "read_write", suspend_timeout_seconds: 600 }],
    annotation_value: { "made-by": "tests" },
  }),
);
const branchId = branch.branch.id;
const endpointId = branch.endpoints[0].id;
const listed = (await api.listProjectBranches({ projectId, search: "de", limit: 10000 })).data;
seen.branches = listed.branches.map((one) => one.name);
seen.annotation = listed.annotations[branchId].value;
seen.expires = (await api.getProjectBranch(projectId, branchId)).data.branch.expires_at;
seen.count = (await api.countProjectBranches({ projectId })).data.count;
await api.updateProjectBranch(projectId, branchId, { branch: { expires_at: null } });
seen.cleared = (await api.getProjectBranch(projectId, branchId)).data.branch.expires_at ?? null;

await finished(await api.createProjectBranchRole(projectId, branchId, { role: { name: "ann" } }));
await finished(
  await api.createProjectBranchDatabase(projectId, branchId, {
    database: { name: "orders", owner_name: "ann" },
  }),
);
seen.roles = (await api.listProjectBranchRoles(projectId, branchId)).data.roles.map((one) => one.name);
const { password } = (await api.getProjectBranchRolePassword(projectId, branchId, "ann")).data;
const reset = await finished(await api.resetProjectBranchRolePassword(projectId, branchId, "ann"));
seen.password_changed = reset.role.password !== password;
seen.schema = (await api.getProjectBranchSchema({ projectId, branchId, db_name: "orders" })).data.sql;
const uri = await api.getConnectionUri({
  projectId, branch_id: branchId, database_name: "orders", role_name: "ann", pooled: false,
});
seen.uri = uri.data.uri;

await finished(await api.suspendProjectEndpoint(projectId, endpointId));
seen.suspended = (await api.getProjectEndpoint(projectId, endpointId)).data.endpoint.current_state;
await finished(await api.startProjectEndpoint(projectId, endpointId));
await finished(await api.restartProjectEndpoint(projectId, endpointId));
await finished(
  await api.updateProjectEndpoint(projectId, endpointId, {
    endpoint: { suspend_timeout_seconds: 900 },
  }),
);
seen.timeout = (await api.listProjectBranchEndpoints(projectId, branchId)).data.endpoints[0]
  .suspend_timeout_seconds;
seen.endpoints = (await api.listProjectEndpoints(projectId)).data.endpoints.length;
seen.operations = (await api.listProjectOperations({ projectId, limit: 2 })).data.operations.length;

await finished(
  await api.restoreProjectBranch(projectId, branchId, { source_branch_id: created.branch.id }),
);
seen.reset = (await api.listProjectBranchRoles(projectId, branchId)).data.roles.map((one) => one.name);
await finished(await api.deleteProjectBranch({ projectId, branchId }));
const key = (await api.createApiKey({ key_name: "by api-client" })).data;
seen.keys = (await api.listApiKeys()).data.map((one) => one.name);
seen.revoked = (await api.revokeApiKey(key.id)).data.revoked;
await api.deleteProject(projectId);
try {
  await api.getProjectBranch(projectId, branchId);
} catch (error) {
  seen.gone = error.response.status;
}
console.log(JSON.stringify(seen));
