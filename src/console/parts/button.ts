import { useState } from 'preact/hooks'
import { later } from '../browser-clock.ts'
import { type ComponentChildren, h, type View } from '../h.ts'
import { t } from '../i18n.ts'
import { Icon, type IconName } from './icon.ts'

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
}: ButtonProps): View {
  return h(
    'button',
    {
      type: submit ? 'submit' : 'button',
      class: `button ${kind}`,
      disabled: disabled || busy,
      'aria-busy': busy ? 'true' : undefined,
      title,
      onClick,
    },
    [icon ? h(Icon, { name: icon }) : null, h('span', null, label)],
  )
}

interface LinkButtonProps {
  label: ComponentChildren
  href: string
  icon?: IconName
  kind?: 'primary' | 'plain' | 'quiet'
  download?: boolean | string
}

export function LinkButton({ label, href, icon, kind = 'plain', download }: LinkButtonProps): View {
  return h(
    'a',
    { class: `button ${kind}`, href, ...(download ? { download: download === true ? '' : download } : {}) },
    [icon ? h(Icon, { name: icon }) : null, h('span', null, label)],
  )
}

const CONFIRMED_MS = 1_500

/** Copies a text and says so. */
export function CopyButton({ text, label }: { text: string; label?: string }): View {
  const [copied, setCopied] = useState(false)
  const copy = async (): Promise<void> => {
    await navigator.clipboard.writeText(text)
    setCopied(true)
    later(CONFIRMED_MS, () => setCopied(false))
  }
  const name = label ?? t('copy')
  return h(
    'button',
    {
      type: 'button',
      class: label ? 'button plain' : 'icon-button',
      title: copied ? t('copied') : name,
      'aria-label': label ? undefined : name,
      onClick: () => void copy(),
    },
    [
      h(Icon, { name: copied ? 'check' : 'copy' }),
      label ? h('span', null, copied ? t('copied') : label) : null,
    ],
  )
}
