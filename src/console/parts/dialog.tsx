// A dialog confirms an irreversible action, or holds a small form. One is open over the page, and ends with it. The
// browser's own dialog keeps the focus inside and closes on Escape.
import type { ComponentChildren, VNode } from 'preact'
import { useEffect, useId, useRef } from 'preact/hooks'
import { type ApiFailure, remove } from '../api.ts'
import { Cell, useCell } from '../cell.ts'
import { t } from '../i18n.ts'
import { useAction } from '../resource.ts'
import { currentAddress, useAddress } from '../router.ts'
import { Button, CopyButton } from './button.tsx'
import { FailureNotice } from './notice.tsx'
import { CodeBlock } from './text.tsx'

const opened = new Cell<{ dialog: VNode; visit: number } | null>(null)

/** Opens a dialog, in place of an open one. */
export const openDialog = (dialog: VNode): void => opened.set({ dialog, visit: currentAddress().visit })

export const closeDialog = (): void => opened.set(null)

export function OpenDialog(): VNode | null {
  const { visit } = useAddress()
  const open = useCell(opened)
  useEffect(() => closeDialog, [])
  return open?.visit === visit ? open.dialog : null
}

interface FormDialogProps {
  title: string
  /** The label of the button that sends the form. */
  label: string
  danger?: boolean
  /** The label of the button that closes the dialog; absent: Cancel. */
  keep?: string
  disabled?: boolean
  onClose?: () => void
  act: () => Promise<void> | Promise<VNode>
  children: ComponentChildren
}

/** A small form or question with one action, closed when the action has succeeded. `act` may return the next dialog. */
export function FormDialog(props: FormDialogProps): VNode {
  const { title, label, danger, keep, disabled, onClose = closeDialog, act } = props
  const action = useAction()
  const isOpen = useRef(true)
  useEffect(
    () => () => {
      isOpen.current = false
    },
    [],
  )
  const send = async (): Promise<void> => {
    await action.run(async () => {
      const next = await act()
      if (next) openDialog(next)
      else if (isOpen.current) onClose()
    })
  }
  const foot = [
    <Button label={keep ?? t('cancel')} onClick={onClose} />,
    <Button
      label={label}
      kind={danger ? 'danger' : 'primary'}
      submit
      busy={action.busy}
      disabled={disabled}
    />,
  ]
  return (
    <Dialog title={title} onClose={onClose} foot={foot} onSubmit={() => void send()}>
      {props.children}
      <FailureNotice failure={action.failure} />
    </Dialog>
  )
}

type Question = Pick<FormDialogProps, 'title' | 'label' | 'keep' | 'act'> & { text: string }

/** A question before an irreversible action. */
export function Confirm({ text, ...question }: Question): VNode {
  return (
    <FormDialog {...question} danger>
      <p>{text}</p>
    </FormDialog>
  )
}

/** Asks before the object at `path` is deleted. */
export function askToRemove(path: string, question: Omit<Question, 'act'>, reload: () => void): void {
  const act = async (): Promise<void> => {
    await remove(path)
    reload()
  }
  openDialog(<Confirm {...question} act={act} />)
}

/** Shows why an action failed, if it did. */
export function tellFailure(title: string, failure: ApiFailure | null): void {
  if (!failure) return
  const foot = <Button label={t('close')} onClick={closeDialog} />
  openDialog(
    <Dialog title={title} onClose={closeDialog} foot={foot}>
      <FailureNotice failure={failure} />
    </Dialog>,
  )
}

type SecretDialogProps = { title: string; text: string; secret: string; onClose?: () => void }

/** A dialog that shows a secret once. */
export function SecretDialog({ title, text, secret, onClose = closeDialog }: SecretDialogProps): VNode {
  const foot = [
    <CopyButton text={secret} label={t('copy')} />,
    <Button label={t('close')} kind="primary" onClick={onClose} />,
  ]
  return (
    <Dialog title={title} onClose={onClose} foot={foot}>
      <p>{text}</p>
      <CodeBlock text={secret} label={title} />
    </Dialog>
  )
}

interface DialogProps {
  title: string
  onClose: () => void
  children?: ComponentChildren
  foot?: ComponentChildren
  onSubmit?: () => void
}

export function Dialog({ title, onClose, children, foot, onSubmit }: DialogProps): VNode {
  const element = useRef<HTMLDialogElement>(null)
  const id = useId()
  useEffect(() => {
    const dialog = element.current
    const opener = document.activeElement
    dialog?.showModal()
    return () => {
      dialog?.close()
      // The browser returns the focus only while the dialog is in the page.
      if (opener instanceof HTMLElement && opener.isConnected) opener.focus()
    }
  }, [])
  const body = [
    <h2 id={id}>{title}</h2>,
    <div class="dialog-body">{children}</div>,
    foot ? <div class="dialog-foot">{foot}</div> : null,
  ]
  return (
    <dialog
      ref={element}
      class="dialog"
      aria-labelledby={id}
      onCancel={(event) => {
        event.preventDefault()
        onClose()
      }}
    >
      {onSubmit ? (
        <form
          onSubmit={(event) => {
            event.preventDefault()
            onSubmit()
          }}
        >
          {body}
        </form>
      ) : (
        body
      )}
    </dialog>
  )
}
