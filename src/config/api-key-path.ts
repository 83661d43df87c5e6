import { join } from 'node:path'

/** The file into which the first start of a service writes its first key. */
export function apiKeyPath({ data_dir }: { data_dir: string }): string {
  return join(data_dir, 'api-key')
}
