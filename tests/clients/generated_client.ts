// openapi-fetch with the types that openapi-typescript makes of the published document: a project
// from its creation to its end. Prints a line of JSON with what it saw; the test judges.
import createClient from "openapi-fetch";
import type { components, paths } from "./api.d.ts";

declare const process: { env: Record<string, string> };
type Operation = components["schemas"]["OperationOut"];

const api = createClient<paths>({
  baseUrl: process.env.API_URL,
  headers: { Authorization: `Bearer ${process.env.API_KEY}` },
});

function there<T>(answer: { data?: T; error?: { message: string } }): T {
  if (answer.data === undefined) throw new Error(answer.error?.message);
  return answer.data;
}

async function ended(operation: Operation): Promise<string> {
  const path = { project_id: operation.project_id, operation_id: operation.id };
  const answer = await api.GET("/projects/{project_id}/operations/{operation_id}", {
    params: { path, query: { wait: 60 } },
  });
  return there(answer).operation.status;
}

const created = there(
  await api.POST("/projects", { body: { project: { name: "by openapi-typescript" } } }),
);
const params = { path: { project_id: created.project.id } };
const statuses: string[] = [];
for (const operation of created.operations) statuses.push(await ended(operation));
const { endpoints } = there(await api.GET("/projects/{project_id}/endpoints", { params }));
const { branches } = there(await api.GET("/projects/{project_id}/branches", { params }));
const refused = await api.PATCH("/projects/{project_id}", {
  params,
  body: { project: { name: "x".repeat(257) } },
});
const deleted = there(await api.DELETE("/projects/{project_id}", { params }));
const gone = await api.GET("/projects/{project_id}", { params });

console.log(
  JSON.stringify({
    ended: statuses,
    endpoints: endpoints.map((endpoint) => endpoint.current_state),
    branches: branches.map((branch) => branch.name),
    deleted: deleted.project.id === created.project.id,
    gone: gone.response.status,
    refused: refused.error?.message.match(/project\.name/)?.[0],
  }),
);
