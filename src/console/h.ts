// Elements without JSX: `h('p', { class: 'lead' }, text)`. Preact's function with types that check the properties of
// elements and components, and that give every view one type.
import { type Attributes, type ComponentChildren, h as create, type JSX, type VNode } from 'preact'

export type { ComponentChildren } from 'preact'

export type View = VNode

export type Component<P> = (props: P) => View | null
interface DataAttributes {
  [name: `data-${string}`]: string | undefined
}

type Given<P> = Omit<P, 'children'> & { children?: ComponentChildren } & Attributes

export function h<Tag extends keyof JSX.IntrinsicElements>(
  tag: Tag,
  props: (JSX.IntrinsicElements[Tag] & DataAttributes) | null,
  ...children: ComponentChildren[]
): View
export function h(component: Component<Record<string, never>>, props: Attributes | null): View
export function h<P>(component: Component<P>, props: Given<P>, ...children: ComponentChildren[]): View
export function h(
  type: string | Component<never>,
  props: object | null,
  ...children: ComponentChildren[]
): View {
  return create(type as string, props, ...children)
}
