// The few numbers that a page is opened for.
import { type ComponentChildren, h, type View } from '../h.ts'

interface FigureProps {
  title: string
  value: ComponentChildren
  note?: ComponentChildren
  exact?: string
}

export function Figures({ figures }: { figures: readonly (FigureProps | null)[] }): View {
  return h(
    'dl',
    { class: 'figures' },
    figures
      .filter((figure) => figure !== null)
      .map(({ title, value, note, exact }) =>
        h('div', { class: 'figure', key: title }, [
          h('dt', null, title),
          h('dd', { title: exact }, [value, note ? h('div', { class: 'note' }, note) : null]),
        ]),
      ),
  )
}

export function Facts({ facts }: { facts: readonly (readonly [string, ComponentChildren])[] }): View {
  const shown = facts.filter(([, value]) => value !== null && value !== undefined && value !== '')
  return h(
    'dl',
    { class: 'facts' },
    shown.flatMap(([title, value]) => [h('dt', null, title), h('dd', null, value)]),
  )
}
