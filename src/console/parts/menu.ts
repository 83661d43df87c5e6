// A button that opens a short list of links and buttons: the browser's own disclosure, closed by Escape and by a click
// elsewhere.
import { useEffect, useRef } from 'preact/hooks'
import { type ComponentChildren, h, type View } from '../h.ts'
import { Icon, type IconName } from './icon.ts'

export function Menu({
  label,
  icon,
  children,
}: {
  label: string
  icon?: IconName
  children?: ComponentChildren
}): View {
  const details = useRef<HTMLDetailsElement>(null)
  useEffect(() => {
    const close = (event: Event): void => {
      const open = details.current
      if (!open?.open) return
      if (event instanceof KeyboardEvent) {
        if (event.key !== 'Escape') return
        open.querySelector('summary')?.focus()
      } else if (
        event.target instanceof Node &&
        open.contains(event.target) &&
        !(event.target instanceof HTMLAnchorElement)
      )
        return
      open.open = false
    }
    document.addEventListener('click', close)
    document.addEventListener('keydown', close)
    return () => {
      document.removeEventListener('click', close)
      document.removeEventListener('keydown', close)
    }
  }, [])
  return h('details', { class: 'menu-button', ref: details }, [
    h('summary', { class: 'button plain' }, [
      icon ? h(Icon, { name: icon }) : null,
      h('span', null, label),
      h(Icon, { name: 'down' }),
    ]),
    h('div', { class: 'menu-list' }, children),
  ])
}
