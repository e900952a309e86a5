// The suites of E2B that need no browser, one file after the other: each has a sandbox for each test.
import { existsSync } from 'node:fs'
import { defineConfig } from 'vitest/config'

const setup = 'tests/globalFetchFallback.setup.ts'
export default defineConfig({
  test: {
    include: ['tests/**/*.test.ts'],
    exclude: ['tests/runtimes/**', 'node_modules/**'],
    setupFiles: existsSync(setup) ? [setup] : [],
    testTimeout: 60_000,
    hookTimeout: 60_000,
    maxWorkers: 2,
    env: { ...process.env },
  },
})
