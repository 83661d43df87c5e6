// Draws buttons, menus, and links.
import type { ComponentChildren, VNode } from 'preact'
import { useEffect, useRef, useState } from 'preact/hooks'
import { pathWith } from '../api.ts'
import { later } from '../browser-clock.ts'
import { t } from '../i18n.ts'
import { href } from '../router.ts'
import { may } from '../session.ts'
import { Icon, type IconName } from './icon.tsx'

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

export function Button({
  label,
  icon,
  kind = 'plain',
  busy,
  disabled,
  submit,
  title,
  onClick,
}: ButtonProps): VNode {
  return (
    <button
      type={submit ? 'submit' : 'button'}
      class={`button ${kind}`}
      disabled={disabled || busy}
      aria-busy={busy ? 'true' : undefined}
      title={title}
      onClick={onClick}
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
  download?: boolean | string
}

/** Buttons of which one is pressed. */
export function Choice<T extends string>({
  label,
  options,
  value,
  choose,
}: {
  label: string
  options: readonly (readonly [value: T, title: string])[]
  value: T
  choose: (value: T) => void
}): VNode {
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
    <a
      class={`button ${kind}`}
      href={href}
      {...(download ? { download: download === true ? '' : download } : {})}
    >
      {icon ? <Icon name={icon} /> : null}
      <span>{label}</span>
    </a>
  )
}

/** An action as a word: in a row of a table, or beside a heading. */
export function TextButton({
  label,
  kind,
  ...button
}: Pick<ButtonProps, 'label' | 'title' | 'disabled' | 'onClick'> & { kind?: 'danger' }): VNode {
  return (
    <button type="button" class={kind ? `link ${kind}` : 'link'} {...button}>
      {label}
    </button>
  )
}

/** Shown to keys that may create batches. */
export function NewBatchButton(): VNode | null {
  return may('batches:write') ? (
    <LinkButton label={t('nav.new')} href={href('/new')} icon="new" kind="primary" />
  ) : null
}

const CONFIRMED_MS = 1_500

/** Copies a text and says so. */
export function CopyButton({ text, label }: { text: string; label?: string }): VNode {
  const [copied, setCopied] = useState(false)
  const copy = async (): Promise<void> => {
    await navigator.clipboard.writeText(text)
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

/** A button that opens a short list of links and buttons: the browser's own disclosure, closed by Escape and by a click elsewhere. */
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

/** A link from an entity to its usage. */
export function Entity({ name }: { name: string }): VNode {
  const isOpen = may('usage:read') || may('limits:read')
  return isOpen ? <a href={pathWith(href('/usage'), { entity: name })}>{name}</a> : <span>{name}</span>
}
