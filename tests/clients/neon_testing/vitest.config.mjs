import { defineConfig } from "vitest/config";
import { neonTesting } from "neon-testing/vite";

export default defineConfig({
  plugins: [neonTesting()],
  test: { include: ["*.test.mjs"], hookTimeout: 60_000, testTimeout: 60_000 },
});
