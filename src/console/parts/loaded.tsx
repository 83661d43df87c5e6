// What a page reads: shown when it is there, with why it could not be read, and a placeholder until then.

import type { ComponentChildren, VNode } from 'preact'
import type { Resource } from '../resource.ts'
import { FailureNotice, Loading } from './notice.tsx'

export function Loaded<T>({
  resource: { data, failure, reload },
  rows,
  children,
}: {
  resource: Resource<T>
  rows?: number
  children: (data: T) => ComponentChildren
}): VNode {
  return (
    <>
      <FailureNotice failure={failure} retry={reload} />
      {data !== null ? children(data) : failure && failure.status !== 0 ? null : <Loading rows={rows} />}
    </>
  )
}
