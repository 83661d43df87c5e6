// Draws buttons, menus, links, and their icons.
import type { ComponentChildren, VNode } from 'preact'
import { useEffect, useRef, useState } from 'preact/hooks'
import { pathWith } from '../api.ts'
import { later } from '../browser-clock.ts'
import { t } from '../i18n.ts'
import { href } from '../router.ts'
import { may } from '../session.ts'

interface ButtonProps {
  label: ComponentChildren
  icon?: IconName
  kind?: 'primary' | 'danger' | 'plain' | 'quiet'
  busy?: boolean
  disabled?: boolean
  submit?: boolean
  title?: string
  onClick?: () => void
}

export function Button({ label, icon, kind = 'plain', busy, submit, ...button }: ButtonProps): VNode {
  return (
    <button
      {...button}
      type={submit ? 'submit' : 'button'}
      class={`button ${kind}`}
      disabled={button.disabled || busy}
      aria-busy={busy ? 'true' : undefined}
    >
      {icon ? <Icon name={icon} /> : null}
      <span>{label}</span>
    </button>
  )
}

interface LinkButtonProps {
  label: ComponentChildren
  href: string
  icon?: IconName
  kind?: 'primary' | 'plain' | 'quiet'
  download?: string
}

interface ChoiceProps<T extends string> {
  label: string
  options: readonly (readonly [value: T, title: string])[]
  value: T
  choose: (value: T) => void
}

/** A group of buttons of which one is pressed. */
export function Choice<T extends string>({ label, options, value, choose }: ChoiceProps<T>): VNode {
  return (
    <div class="seg" role="group" aria-label={label}>
      {options.map(([name, title]) => (
        <button type="button" aria-pressed={name === value} onClick={() => choose(name)}>
          {title}
        </button>
      ))}
    </div>
  )
}

export function LinkButton({ label, href, icon, kind = 'plain', download }: LinkButtonProps): VNode {
  return (
    <a class={`button ${kind}`} href={href} download={download}>
      {icon ? <Icon name={icon} /> : null}
      <span>{label}</span>
    </a>
  )
}

type TextButtonProps = Pick<ButtonProps, 'label' | 'title' | 'disabled' | 'onClick'> & { kind?: 'danger' }

/** An action as a word: in a row of a table, or beside a heading. */
export function TextButton({ label, kind, ...button }: TextButtonProps): VNode {
  return (
    <button type="button" class={kind ? `link ${kind}` : 'link'} {...button}>
      {label}
    </button>
  )
}

/** The button for a new batch, for keys that may create batches. */
export function NewBatchButton(): VNode | null {
  return may('batches:write') ? (
    <LinkButton label={t('nav.new')} href={href('/new')} icon="new" kind="primary" />
  ) : null
}

const CONFIRMED_MS = 1_500

/** Whether a text is on the clipboard now. */
async function copyText(text: string): Promise<boolean> {
  // Browsers give it to pages that came with TLS or from this machine; other pages may only fill what is being copied.
  if (isSecureContext)
    return await navigator.clipboard.writeText(text).then(
      () => true,
      () => false,
    )
  const fill = (event: ClipboardEvent): void => {
    event.clipboardData?.setData('text/plain', text)
    event.preventDefault()
  }
  document.addEventListener('copy', fill)
  const isCopied = document.execCommand('copy')
  document.removeEventListener('copy', fill)
  return isCopied
}

/** A button that copies a text and confirms it. */
export function CopyButton({ text, label }: { text: string; label?: string }): VNode {
  const [copied, setCopied] = useState(false)
  const copy = async (): Promise<void> => {
    if (!(await copyText(text))) return
    setCopied(true)
    later(CONFIRMED_MS, () => setCopied(false))
  }
  const name = label ?? t('copy')
  return (
    <button
      type="button"
      class={label ? 'button plain' : 'icon-button'}
      title={copied ? t('copied') : name}
      aria-label={label ? undefined : name}
      onClick={() => void copy()}
    >
      <Icon name={copied ? 'check' : 'copy'} />
      {label ? <span>{copied ? t('copied') : label}</span> : null}
    </button>
  )
}

type MenuProps = { label: string; icon?: IconName; children?: ComponentChildren }

/** A button that opens a short list of links and buttons: the browser's disclosure, closed by Escape or a click. */
export function Menu({ label, icon, children }: MenuProps): VNode {
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

/** A link from an entity to its usage. */
export function Entity({ name }: { name: string }): VNode {
  const isOpen = may('usage:read') || may('limits:read')
  return isOpen ? <a href={pathWith(href('/usage'), { entity: name })}>{name}</a> : <span>{name}</span>
}

// Icons of 16 by 16 pixels, all in the colour of the text around them.

const PATHS = {
  overview: 'M2.5 8 8 3l5.5 5M4 7v6h8V7',
  batches: 'M2.5 4h11M2.5 8h11M2.5 12h7',
  new: 'M8 3v10M3 8h10',
  files: 'M4 2.5h5l3 3v8H4zM9 2.5v3h3',
  usage: 'M3 13V8M8 13V3M13 13V6',
  limits: 'M2.5 11a5.5 5.5 0 0 1 11 0M8 11l2.6-3.4',
  webhooks: 'M8 2.5v6m0 0 2.5-2.5M8 8.5 5.5 6M3 10v3h10v-3',
  audit: 'M7 11.5a4.5 4.5 0 1 0 0-9 4.5 4.5 0 0 0 0 9Zm3.2-1.3 3.3 3.3',
  keys: 'M10 6.5a3 3 0 1 1-1.2-2.4M8 8.5l-5 5m2.5-2.5 1.5 1.5',
  servers: 'M2.5 3h11v4h-11zM2.5 9h11v4h-11zM5 5h.01M5 11h.01',
  settings: 'M2.5 4.5h6m3 0h2m-11 7h2m3 0h6M10 3v3M6 10v3',
  down: 'M4 6.5 8 10.5l4-4',
  copy: 'M5.5 5.5h7v7h-7zM3.5 10.5v-7h7',
  check: 'M3 8.5 6.5 12 13 4.5',
  cross: 'M4 4l8 8M12 4l-8 8',
  menu: 'M2.5 4.5h11M2.5 8h11M2.5 11.5h11',
  download: 'M8 2.5v7m0 0 3-3m-3 3-3-3M3 12.5h10',
  retry: 'M13 8a5 5 0 1 1-1.5-3.6M13 2.5v3h-3',
  pause: 'M5.5 3.5v9M10.5 3.5v9',
  play: 'M5 3.5v9l7.5-4.5z',
} as const

export type IconName = keyof typeof PATHS

export function Icon({ name }: { name: IconName }): VNode {
  return (
    <svg class="icon" viewBox="0 0 16 16" width={16} height={16} aria-hidden="true" focusable="false">
      <path d={PATHS[name]} />
    </svg>
  )
}
