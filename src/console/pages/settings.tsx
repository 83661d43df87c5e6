// The page of settings changes language and colours, which the browser keeps, and shows operators the configuration.
import type { VNode } from 'preact'
import type { QuotasObject } from '../../wire/project.ts'
import type { Settings as SettingsObject } from '../../wire/status.ts'
import { quotaText } from '../format.ts'
import { isLanguage, LANGUAGES, type Language, languageOf, useLanguage as loadLanguage, t } from '../i18n.ts'
import { print } from '../json.ts'
import { keep, kept } from '../kept.ts'
import { optionsOf, SelectField } from '../parts/field.tsx'
import { FailureNotice } from '../parts/notice.tsx'
import { Facts, Page, Section, Time } from '../parts/page.tsx'
import { type Column, Table } from '../parts/table.tsx'
import { CodeBlock } from '../parts/text.tsx'
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

const THEMES = ['auto', 'light', 'dark'] as const
type Theme = (typeof THEMES)[number]

const THEME = 'theme'
const LANGUAGE = 'language'

const theme = (): Theme => THEMES.find((name) => name === kept(THEME)) ?? 'auto'

function setTheme(name: Theme): void {
  keep(THEME, name)
  document.documentElement.dataset.theme = name
}

const language = (): Language => languageOf(kept(LANGUAGE), navigator.languages)

/** Stores the language; the reload changes every text. */
function setLanguage(name: string): void {
  if (isLanguage(name)) keep(LANGUAGE, name)
  location.reload()
}

/** Applies theme and language; called before the first page is drawn. */
export async function applyPreferences(): Promise<void> {
  document.documentElement.dataset.theme = theme()
  const name = language()
  document.documentElement.lang = name
  await loadLanguage(name, navigator.languages.find((tag) => tag.toLowerCase().startsWith(name)) ?? name)
}
