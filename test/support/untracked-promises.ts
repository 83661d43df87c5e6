// Preloaded where tests run: keeps Node's test runner from following every promise with async hooks, which takes two fifths
// of the CPU of src/worker/remote-batches.test.ts. It follows them to name the test in which nobody caught an error; without
// that, such an error fails the whole file.
import asyncHooks from 'node:async_hooks'

const { createHook } = asyncHooks

asyncHooks.createHook = (callbacks) =>
  createHook(
    new Error().stack?.includes('node:internal/test_runner')
      ? { ...callbacks, trackPromises: false }
      : callbacks,
  )
