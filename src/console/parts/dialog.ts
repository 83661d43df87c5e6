// A question before something that cannot be undone, or a small form. The browser's own dialog keeps the focus
// inside and closes on Escape.
import { useEffect, useId, useRef } from 'preact/hooks'
import { type ComponentChildren, h, type View } from '../h.ts'
import { t } from '../i18n.ts'
import { useAction } from '../resource.ts'
import { Button, CopyButton } from './button.ts'
import { FailureNotice } from './notice.ts'
import { CodeBlock, visibleText } from './text.ts'

/** A question, and the one thing that happens when the answer is yes. */
export function ConfirmDialog({
  title,
  text,
  label,
  onClose,
  act,
}: {
  title: string
  text: string
  label: string
  onClose: () => void
  act: () => Promise<void>
}): View {
  const action = useAction()
  const confirm = async (): Promise<void> => {
    if (await action.run(act)) onClose()
  }
  const foot = [
    h(Button, { label: t('cancel'), onClick: onClose }),
    h(Button, { label, kind: 'danger', busy: action.busy, onClick: () => void confirm() }),
  ]
  return h(Dialog, { title, onClose, foot }, [
    h('p', null, visibleText(text)),
    h(FailureNotice, { failure: action.failure }),
  ])
}

/** Why an action failed; nothing while it has not. */
export function FailureDialog({
  title,
  action,
}: {
  title: string
  action: Pick<ReturnType<typeof useAction>, 'failure' | 'clear'>
}): View | null {
  const { failure, clear } = action
  if (!failure) return null
  const foot = h(Button, { label: t('close'), onClick: clear })
  return h(Dialog, { title, onClose: clear, foot }, h(FailureNotice, { failure }))
}

/** What is shown once and never again. */
export function SecretDialog({
  title,
  text,
  secret,
  onClose,
}: {
  title: string
  text: string
  secret: string
  onClose: () => void
}): View {
  const foot = [
    h(CopyButton, { text: secret, label: t('copy') }),
    h(Button, { label: t('close'), kind: 'primary', onClick: onClose }),
  ]
  return h(Dialog, { title, onClose, foot }, [
    h('p', null, text),
    h(CodeBlock, { text: secret, label: title }),
  ])
}

interface DialogProps {
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
    const opener = document.activeElement
    dialog?.showModal()
    return () => {
      dialog?.close()
      // The browser gives the focus back only while the dialog is in the page.
      if (opener instanceof HTMLElement && opener.isConnected) opener.focus()
    }
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
