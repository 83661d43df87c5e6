import { useEffect, useState } from 'preact/hooks'
import { h, type View } from './h.ts'
import { t } from './i18n.ts'
import { Button } from './parts/button.ts'
import { TextField } from './parts/field.ts'
import { FailureNotice } from './parts/notice.ts'
import { useAction } from './resource.ts'
import { signIn } from './session.ts'

export function SignIn(): View {
  const [key, setKey] = useState('')
  const action = useAction()
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
          void action.run(() => signIn(key.trim()))
        },
      },
      [
        h('div', { class: 'brand-name' }, [
          h('span', { class: 'brand-mark', 'aria-hidden': 'true' }),
          'Offpeak',
        ]),
        h('h1', null, t('signIn.title')),
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
        h('p', { class: 'hint' }, [t('signIn.hint'), ' ', h('code', { class: 'code' }, 'offpeak console')]),
      ],
    ),
  ])
}
