import { useEffect, useState } from 'preact/hooks'
import type { ConsoleSession } from '../wire/project.ts'
import { type ComponentChildren, h, type View } from './h.ts'
import { t } from './i18n.ts'
import { Button } from './parts/button.ts'
import { TextField } from './parts/field.ts'
import { FailureNotice } from './parts/notice.ts'
import { useAction } from './resource.ts'
import { dismissLink, signIn, signInByLink } from './session.ts'

export function SignIn(): View {
  const [key, setKey] = useState('')
  const action = useAction()
  return h(Card, { title: t('signIn.title'), onSubmit: () => void action.run(() => signIn(key.trim())) }, [
    h(TextField, {
      label: t('signIn.apiKey'),
      type: 'password',
      value: key,
      onInput: setKey,
      placeholder: 'opk_…',
      mono: true,
      required: true,
      autoFocus: true,
      autocomplete: 'current-password',
    }),
    h(FailureNotice, { failure: action.failure }),
    h(Button, { label: t('signIn'), kind: 'primary', submit: true, busy: action.busy }),
    h('p', { class: 'hint' }, [t('signIn.hint'), ' ', h(Command, null)]),
  ])
}

/** Asks before a link signs in: its owner would see what is done from then on. */
export function LinkSignIn({
  link,
  session,
}: {
  link: string
  session: ConsoleSession | null | undefined
}): View {
  const action = useAction()
  return h(Card, { title: t('link.title'), onSubmit: () => void action.run(() => signInByLink(link)) }, [
    session ? h('p', null, t('link.replaces', { project: session.project.name })) : null,
    h('p', null, [t('link.text'), ' ', h(Command, null), '.']),
    h(FailureNotice, { failure: action.failure }),
    h(Button, { label: t('signIn'), kind: 'primary', submit: true, busy: action.busy }),
    h(Button, { label: t('cancel'), onClick: dismissLink }),
  ])
}

function Command(): View {
  return h('code', { class: 'code' }, 'offpeak console')
}

function Card({
  title,
  onSubmit,
  children,
}: {
  title: string
  onSubmit: () => void
  children?: ComponentChildren
}): View {
  useEffect(() => {
    document.title = `${t('signIn')} · Offpeak`
  }, [])
  return h('main', { class: 'sign-in', id: 'main' }, [
    h(
      'form',
      {
        class: 'card sign-in-card',
        onSubmit: (event) => {
          event.preventDefault()
          onSubmit()
        },
      },
      [
        h('div', { class: 'brand-name' }, [
          h('span', { class: 'brand-mark', 'aria-hidden': 'true' }),
          'Offpeak',
        ]),
        h('h1', null, title),
        children,
      ],
    ),
  ])
}
