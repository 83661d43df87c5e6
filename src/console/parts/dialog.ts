// A question before something that cannot be undone, or a small form. The browser's own dialog keeps the focus
// inside, closes on Escape and gives the focus back.
import { useEffect, useId, useRef } from 'preact/hooks'
import { type ComponentChildren, h, type View } from '../h.ts'

export interface DialogProps {
  title: string
  onClose: () => void
  children?: ComponentChildren
  /** The buttons. */
  foot?: ComponentChildren
  onSubmit?: () => void
}

export function Dialog({ title, onClose, children, foot, onSubmit }: DialogProps): View {
  const element = useRef<HTMLDialogElement>(null)
  const id = useId()
  useEffect(() => {
    const dialog = element.current
    dialog?.showModal()
    return () => dialog?.close()
  }, [])
  const body = [
    h('h2', { id }, title),
    h('div', { class: 'dialog-body' }, children),
    foot ? h('div', { class: 'dialog-foot' }, foot) : null,
  ]
  return h(
    'dialog',
    {
      ref: element,
      class: 'dialog',
      'aria-labelledby': id,
      onCancel: (event) => {
        event.preventDefault()
        onClose()
      },
    },
    onSubmit
      ? h(
          'form',
          {
            onSubmit: (event) => {
              event.preventDefault()
              onSubmit()
            },
          },
          body,
        )
      : body,
  )
}
