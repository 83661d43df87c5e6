// Shows the forms that sign in: by a key, or by a one-time link.
import type { ComponentChildren, VNode } from 'preact'
import { useEffect, useState } from 'preact/hooks'
import type { ConsoleSession } from '../wire/project.ts'
import { useCell } from './cell.ts'
import { t } from './i18n.ts'
import { Button } from './parts/button.tsx'
import { TextField } from './parts/field.tsx'
import { FailureNotice, Notice } from './parts/notice.tsx'
import { useAction } from './resource.ts'
import { hasEnded, noAccess, link as openedLink, signIn, signInByLink } from './session.ts'

export function SignIn(): VNode {
  const [key, setKey] = useState('')
  const isOver = useCell(hasEnded)
  const noAccessReason = useCell(noAccess)
  const action = useAction()
  return (
    <Card title={t('signIn.title')} onSubmit={() => void action.run(() => signIn(key.trim()))}>
      <TextField
        label={t('usage.by.key')}
        type="password"
        value={key}
        onInput={setKey}
        placeholder="opk_…"
        mono
        required
        autoFocus
        autocomplete="current-password"
      />
      {action.failure?.code === 'invalid_api_key' ? (
        <Notice tone="bad">{t('signIn.wrongKey')}</Notice>
      ) : action.failure ? (
        <FailureNotice failure={action.failure} />
      ) : noAccessReason !== null ? (
        <Notice tone="bad">{noAccessReason}</Notice>
      ) : isOver ? (
        <Notice tone="warn">{t('signIn.ended')}</Notice>
      ) : null}
      <Button label={t('signIn')} kind="primary" submit busy={action.busy} />
      <p class="hint">
        {t('signIn.hint')} <Command />
      </p>
    </Card>
  )
}

type LinkSignInProps = { link: string; session: ConsoleSession | null | undefined }

/** Asks before a link signs in: the owner of its key would see everything that is done afterwards. */
export function LinkSignIn({ link, session }: LinkSignInProps): VNode {
  const action = useAction()
  return (
    <Card title={t('link.title')} onSubmit={() => void action.run(() => signInByLink(link))}>
      {session ? <p>{t('link.replaces', { project: session.project.name })}</p> : null}
      <p>
        {t('link.text')} <Command />.
      </p>
      <FailureNotice failure={action.failure} />
      <Button label={t('signIn')} kind="primary" submit busy={action.busy} />
      <Button label={t('cancel')} onClick={() => openedLink.set(null)} />
    </Card>
  )
}

const Command = (): VNode => <code class="code">offpeak console</code>

type CardProps = { title: string; onSubmit: () => void; children?: ComponentChildren }

function Card({ title, onSubmit, children }: CardProps): VNode {
  useEffect(() => {
    document.title = `${t('signIn')} · Offpeak`
  }, [])
  return (
    <main class="sign-in" id="main">
      <form
        class="card stack sign-in-card"
        onSubmit={(event) => {
          event.preventDefault()
          onSubmit()
        }}
      >
        <div class="brand-name">
          <span class="brand-mark" aria-hidden="true" />
          Offpeak
        </div>
        <h1>{title}</h1>
        {children}
      </form>
    </main>
  )
}
