// The keys of servers that are started on demand, and of the machine that they share.
import { availableGpus, installedMemory } from './machine-size.ts'
import { anyText, duration, integer, orWord, size, text } from './scalars.ts'
import { byDefault, checked, listOf, mapOf, optional, secret, section } from './shape.ts'

const FILE = /^[A-Za-z0-9_][A-Za-z0-9._-]{0,63}$/
const VARIABLE = /^[A-Za-z_][A-Za-z0-9_]*$/

export const ENGINE = checked(
  section({
    command: listOf(anyText, 'a list such as [llama-server, -m, model.gguf, --port, "{port}"]'),
    ready: byDefault('/health', text(/^\/\S*$/, 'a path such as /health')),
    start_timeout: byDefault('10m', duration(1000)),
    idle_timeout: byDefault('10m', duration(0)),
    env: mapOf(secret(text(/^[^\n\r]*$/, 'the value of a variable')), (name) =>
      VARIABLE.test(name) ? null : 'is no name of a variable',
    ),
    pass_env: optional(listOf(text(VARIABLE, 'the name of a variable'), 'a list such as [HF_TOKEN]')),
    files: mapOf(secret(text(/^[\s\S]*$/, 'the text of a file')), (name) =>
      FILE.test(name) ? null : 'is no name of a file; expected letters, digits, dots, dashes and underscores',
    ),
    gpus: byDefault(0, integer(0, 1024)),
    memory: byDefault('0B', size(0)),
  }),
  ({ command, env, files }, problem) => {
    const words = [...command, ...Object.values(env), ...Object.values(files)]
    const places = ['{port}', '{socket}'].filter((place) => words.some((word) => word.includes(place)))
    if (places.length === 0)
      problem(
        ['command'],
        'needs {socket}, the Unix socket that the server is to listen on, or {port}, a port of 127.0.0.1',
      )
    if (places.length > 1)
      problem(['command'], 'has {socket} and {port}: the server is to listen on one of them')
  },
)

export const ENGINES = section({
  gpus: byDefault('auto', orWord(integer(0, 1024), { auto: 'auto' } as const, 'a whole number, or auto')),
  memory: byDefault('auto', orWord(size(0), { auto: 'auto' } as const, 'a size such as 64GiB, or auto')),
  min_run: byDefault('2m', duration(0)),
})

/** What engines may use: `auto` is what this machine has. */
export function machineOf(
  { gpus, memory, min_run }: { gpus: number | 'auto'; memory: number | 'auto'; min_run: number },
  env: NodeJS.ProcessEnv,
): { gpus: string[]; memory_bytes: number; run_ms_min: number } {
  return {
    gpus: availableGpus(gpus, env.CUDA_VISIBLE_DEVICES),
    memory_bytes: memory === 'auto' ? installedMemory() : memory,
    run_ms_min: min_run,
  }
}
