// The results of a batch in the order of its lines, a page at a time.
import { fetchApi, pathWith } from './api.ts'

/** Result lines behind line `after`; while the batch runs, those before the first that is not finished. */
export async function readResults(
  batchId: string,
  { after, limit }: { after: string; limit: number },
  signal: AbortSignal,
): Promise<{ lines: string[]; next: string | null }> {
  const path = pathWith(`/v1/batches/${encodeURIComponent(batchId)}/results`, {
    after,
    limit,
    contiguous: true,
  })
  const response = await fetchApi('GET', path, undefined, { signal })
  const lines = (await response.text()).split('\n').filter((line) => line !== '')
  const { headers } = response
  return { lines, next: headers.get('x-has-more') === 'true' ? headers.get('x-next-after') : null }
}
