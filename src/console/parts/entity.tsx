// A link from an entity to its usage.
import type { VNode } from 'preact'
import { pathWith } from '../api.ts'
import { href } from '../router.ts'
import { may } from '../session.ts'

export function Entity({ name }: { name: string }): VNode {
  const isOpen = may('usage:read') || may('limits:read')
  return isOpen ? <a href={pathWith(href('/usage'), { entity: name })}>{name}</a> : <span>{name}</span>
}
