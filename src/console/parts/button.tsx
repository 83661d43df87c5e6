// Buttons and links that look like buttons.
import type { ComponentChildren, VNode } from 'preact'
import { useState } from 'preact/hooks'
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
    <LinkButton label={t('new.title')} href={href('/new')} icon="new" kind="primary" />
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
