// A button that opens a short list of links and buttons: the browser's own disclosure, closed by Escape and by a click
// elsewhere.

import type { ComponentChildren, VNode } from 'preact'
import { useEffect, useRef } from 'preact/hooks'
import { Icon, type IconName } from './icon.tsx'

export function Menu({
  label,
  icon,
  children,
}: {
  label: string
  icon?: IconName
  children?: ComponentChildren
}): VNode {
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
        !(event.target instanceof Element && event.target.closest('.menu-item'))
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
  return (
    <details class="menu-button" ref={details}>
      <summary class="button plain">
        {icon ? <Icon name={icon} /> : null}
        <span>{label}</span>
        <Icon name="down" />
      </summary>
      <div class="menu-list">{children}</div>
    </details>
  )
}
