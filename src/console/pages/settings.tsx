// The page of settings changes language and colours of the console, and shows operators the configuration in force.
import type { VNode } from 'preact'
import type { QuotasObject } from '../../wire/project.ts'
import type { Settings as SettingsObject } from '../../wire/status.ts'
import { print } from '../exact-json.ts'
import { quotaText } from '../format.ts'
import { LANGUAGES, t } from '../i18n.ts'
import { optionsOf, SelectField } from '../parts/field.tsx'
import { Facts, Time } from '../parts/figures.tsx'
import { FailureNotice } from '../parts/notice.tsx'
import { Page, Section } from '../parts/page.tsx'
import { type Column, Table } from '../parts/table.tsx'
import { CodeBlock } from '../parts/text.tsx'
import { language, setLanguage, setTheme, THEMES, theme } from '../preferences.ts'
import { useGet } from '../resource.ts'
import { may, useSession } from '../session.ts'

type Quota = readonly [string, QuotasObject['quotas']['uploads']]

export function Settings(): VNode {
  const session = useSession()
  const operator = may('operator')
  const settings = useGet<SettingsObject>(operator ? '/v1/settings' : null)
  const quotas = useGet<QuotasObject>('/v1/quotas')
  const columns: Column<Quota>[] = [
    { title: t('settings.quota'), main: true, cell: ([name]) => <code class="code">{name}</code> },
    { title: t('settings.used'), align: 'end', cell: ([name, { used }]) => quotaText(name, used) },
    { title: t('nav.limits'), align: 'end', cell: ([name, { limit }]) => quotaText(name, limit) },
  ]
  return (
    <Page title={t('nav.settings')}>
      <div class="form form-row">
        <SelectField
          label={t('settings.theme')}
          value={theme()}
          options={optionsOf('settings.theme', THEMES)}
          onInput={(name) => setTheme(THEMES.find((known) => known === name) ?? 'auto')}
        />
        <SelectField
          label={t('settings.language')}
          value={language()}
          options={Object.entries(LANGUAGES)}
          onInput={setLanguage}
        />
      </div>
      {session ? (
        <Section title={t('settings.session')}>
          <div class="card">
            <Facts
              facts={[
                [t('limits.project'), session.project.name],
                [t('keys.plan'), session.project.plan],
                [t('audit.key'), <span class="mono">{session.api_key_id}</span>],
                [t('keys.scopes'), session.scopes.join(', ')],
                [t('settings.until'), session.expires_at === null ? null : <Time at={session.expires_at} />],
                [t('region'), session.region],
                [t('settings.version'), session.version],
              ]}
            />
          </div>
        </Section>
      ) : null}
      <FailureNotice failure={quotas.failure} />
      {quotas.data ? (
        <Section title={t('keys.quotas')}>
          <Table label={t('keys.quotas')} columns={columns} rows={Object.entries(quotas.data.quotas)} />
        </Section>
      ) : null}
      <FailureNotice failure={settings.failure} />
      {settings.data ? (
        <Section title={t('settings.configuration')}>
          <p class="muted">{t('settings.configurationText')}</p>
          <CodeBlock text={print(settings.data.configuration)} label={t('settings.configuration')} />
        </Section>
      ) : null}
    </Page>
  )
}
