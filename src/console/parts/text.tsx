// Shows control and formatting characters of every element, so that no text changes how the text around it looks.
import { type ComponentChildren, Fragment, options, type VNode } from 'preact'
import { isWaitingKey, type WaitingText, waitingText } from '../../domain/waiting-text.ts'
import type { BatchObject } from '../../wire/batch.ts'
import { now } from '../browser-clock.ts'
import { dateTime } from '../format.ts'
import { currentLocale, type MessageKey, t, waitingTexts } from '../i18n.ts'
import { href } from '../router.ts'
import { may } from '../session.ts'

/** Control characters but tab and line end; formatting characters but soft hyphens and joiners. */
const HIDDEN = /(?!\r\n|[\t\n])\p{Cc}|(?![\u00ad\u200c\u200d])\p{Cf}/gu

/** The attributes of an element that browsers show as text. */
const ATTRIBUTES = ['title', 'aria-label', 'placeholder', 'alt', 'data-title']

/** Makes hidden characters visible in every later element, except in fields. */
export function showHiddenCharacters(): void {
  options.vnode = ({ type, props }: VNode<Record<string, unknown>>) => {
    if (typeof type !== 'string' && type !== Fragment) return
    for (const name of ATTRIBUTES) if (typeof props[name] === 'string') props[name] = named(props[name])
    if (type !== 'textarea') props.children = visible(props.children as ComponentChildren, type === 'option')
  }
}

function visible(children: ComponentChildren, onlyText: boolean): ComponentChildren {
  if (Array.isArray(children)) return children.map((child) => visible(child, onlyText))
  if (typeof children !== 'string' || children.search(HIDDEN) < 0) return children
  if (onlyText) return named(children)
  const parts: ComponentChildren[] = []
  let from = 0
  for (const { 0: character, index } of children.matchAll(HIDDEN)) {
    const code = codeOf(character)
    parts.push(
      children.slice(from, index),
      <span class="hidden-character" title={`U+${code}`}>
        {code}
      </span>,
    )
    from = index + character.length
  }
  return [...parts, children.slice(from)]
}

export const named = (text: string): string =>
  text.replaceAll(HIDDEN, (character) => `[U+${codeOf(character)}]`)

function codeOf(character: string): string {
  return (character.codePointAt(0) ?? 0).toString(16).toUpperCase().padStart(4, '0')
}

/** A text of the service, with code in back-ticks. */
export function Words({ text }: { text: string }): VNode {
  return (
    <>{text.split(/`([^`]+)`/).map((part, i) => (i % 2 === 1 ? <code class="code">{part}</code> : part))}</>
  )
}

/** The waiting reason of a batch in the reader's language and time zone. */
export function waitingWords({ message, text }: { message: string; text?: WaitingText }): string {
  if (!text || !isWaitingKey(text.key)) return message
  const showTime = (at: number): string => dateTime(at, now())
  return waitingText(text.key, text.values, { texts: waitingTexts(), locale: currentLocale(), showTime })
}

/** The waiting reason of a batch, with a link to the page that may change it. */
export function WaitingReason({ reason }: { reason: NonNullable<BatchObject['waiting_reason']> }): VNode {
  const to = { usage_limit: 'limits', model_unavailable: 'servers' }[reason.code as string]
  const isOpen = to === 'limits' ? may('limits:read') : to !== undefined && may('operator')
  return (
    <>
      <Words text={waitingWords(reason)} />{' '}
      {isOpen ? <a href={href(`/${to}`)}>{t(`nav.${to}` as MessageKey)}</a> : null}
    </>
  )
}

/** The text about asking again for answers that miss their schema. */
export function reaskText(reask: BatchObject['reask'] | null): string {
  return reask == null ? t('new.reask.never') : t(`new.reask.${reask.mode}`, { n: reask.max })
}

export function Prose({ text }: { text: string }): VNode {
  return (
    <div class="prose" dir="auto">
      {text}
    </div>
  )
}

export function CodeBlock({ text, label }: { text: string; label: string }): VNode {
  return (
    <pre class="code-block wrap" tabIndex={0} role="region" aria-label={label}>
      {text}
    </pre>
  )
}
