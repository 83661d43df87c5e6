// How the console looks to this reader, and for operators the configuration in force.
import type { QuotasObject } from '../../wire/project.ts'
import type { Settings as SettingsObject } from '../../wire/status.ts'
import { get } from '../api.ts'
import { print } from '../exact-json.ts'
import { bytes, count } from '../format.ts'
import { h, type View } from '../h.ts'
import { LANGUAGES, type MessageKey, t } from '../i18n.ts'
import { SelectField } from '../parts/field.ts'
import { Facts } from '../parts/figures.ts'
import { FailureNotice } from '../parts/notice.ts'
import { Page, Section } from '../parts/page.ts'
import { type Column, Table } from '../parts/table.ts'
import { CodeBlock } from '../parts/text.ts'
import { Time } from '../parts/time.ts'
import { language, setLanguage, setTheme, THEMES, theme } from '../preferences.ts'
import { useResource } from '../resource.ts'
import { may, useSession } from '../session.ts'

type Quota = readonly [string, QuotasObject['quotas']['uploads']]

export function Settings(): View {
  const session = useSession()
  const operator = may('operator')
  const settings = useResource(
    async (signal) => (operator ? await get<SettingsObject>('/v1/settings', {}, { signal }) : null),
    [],
  )
  const quotas = useResource((signal) => get<QuotasObject>('/v1/quotas', {}, { signal }), [])
  const show = (name: string, value: number | null): string =>
    value === null ? '–' : name === 'stored_bytes' ? bytes(value) : count(value)
  const columns: Column<Quota>[] = [
    { title: t('settings.quota'), main: true, cell: ([name]) => h('code', { class: 'code' }, name) },
    { title: t('settings.used'), align: 'end', cell: ([name, { used }]) => show(name, used) },
    { title: t('nav.limits'), align: 'end', cell: ([name, { limit }]) => show(name, limit) },
  ]
  return h(Page, { title: t('settings.title') }, [
    h('div', { class: 'form form-row' }, [
      h(SelectField, {
        label: t('settings.theme'),
        value: theme(),
        options: THEMES.map((name) => [name, t(`settings.theme.${name}` satisfies MessageKey)] as const),
        onInput: (name) => setTheme(THEMES.find((known) => known === name) ?? 'auto'),
      }),
      h(SelectField, {
        label: t('settings.language'),
        value: language(),
        options: Object.entries(LANGUAGES),
        onInput: setLanguage,
      }),
    ]),
    session
      ? h(
          Section,
          { title: t('settings.session') },
          h(
            'div',
            { class: 'card' },
            h(Facts, {
              facts: [
                [t('keys.project'), session.project.name],
                [t('keys.plan'), session.project.plan],
                [t('audit.key'), h('span', { class: 'mono' }, session.api_key_id)],
                [t('keys.scopes'), session.scopes.join(', ')],
                [
                  t('settings.until'),
                  session.expires_at === null ? null : h(Time, { at: session.expires_at }),
                ],
                [t('region'), session.region],
                [t('settings.version'), session.version],
              ],
            }),
          ),
        )
      : null,
    h(FailureNotice, { failure: quotas.failure }),
    quotas.data
      ? h(
          Section,
          { title: t('keys.quotas') },
          h(Table<Quota>, {
            label: t('keys.quotas'),
            columns,
            rows: Object.entries(quotas.data.quotas),
            keyOf: ([name]) => name,
          }),
        )
      : null,
    h(FailureNotice, { failure: settings.failure }),
    settings.data
      ? h(Section, { title: t('settings.configuration') }, [
          h('p', { class: 'muted' }, t('settings.configurationText')),
          h(CodeBlock, { text: print(settings.data.configuration), label: t('settings.configuration') }),
        ])
      : null,
  ])
}
