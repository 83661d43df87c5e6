// Checks the name of a file before it is written: once under the temporary name from which it is renamed, and first of
// all before lines are sent, which are paid for whether their answers can be written or not.
import { access, constants, realpath, stat } from 'node:fs/promises'
import { basename, dirname, join, resolve } from 'node:path'
import { Failure } from './terminal/failure.ts'

/**
 * Throws where no file can be written at `path`, as at that of a folder or a device, which a renamed file would replace;
 * or where it would replace one of `kept`, also by another name: what these are, and their paths.
 */
export async function checkOutput(path: string, kept: Record<string, string> = {}): Promise<void> {
  const found = await stat(path).catch(() => null)
  if (found ? !found.isFile() : basename(path) === '' || path.endsWith('/'))
    throw new Failure(`the output ${path} is not a regular file; name a file`)
  await access(dirname(resolve(path)), constants.W_OK)
  const place = await placeOf(path)
  for (const [what, other] of Object.entries(kept))
    if (place === (await placeOf(other)))
      throw new Failure(`the output ${path} would replace ${what}; name another file with -o`)
}

/** Without links, whether there is such a file or not. */
async function placeOf(path: string): Promise<string> {
  return await realpath(path).catch(async () => join(await realpath(dirname(path)), basename(path)))
}
