// API keys, and the projects and plans that they belong to.
import { useState } from 'preact/hooks'
import type { Scope } from '../../domain/api-key.ts'
import type { List } from '../../wire/list.ts'
import type { ApiKeyObject, ProjectObject } from '../../wire/project.ts'
import { get, post, remove } from '../api.ts'
import { h, type View } from '../h.ts'
import { t } from '../i18n.ts'
import { Button } from '../parts/button.ts'
import { ConfirmDialog, Dialog, SecretDialog } from '../parts/dialog.ts'
import { CheckField, SelectField, TextField } from '../parts/field.ts'
import { FailureNotice, Loading } from '../parts/notice.ts'
import { Page, Section } from '../parts/page.ts'
import { Badge } from '../parts/status.ts'
import { type Column, Table } from '../parts/table.ts'
import { visibleText } from '../parts/text.ts'
import { Time } from '../parts/time.ts'
import { useAction, useResource } from '../resource.ts'
import { may, useSession } from '../session.ts'

/** Kept back unless asked for: with them a key rules over others. */
const POWERS: readonly Scope[] = ['operator', 'keys:write']

export function Keys(): View {
  const session = useSession()
  const keys = useResource((signal) => get<List<ApiKeyObject>>('/v1/keys', { limit: 100 }, { signal }), [])
  const projects = useResource(
    async (signal) =>
      may('operator') ? await get<List<ProjectObject>>('/v1/projects', { limit: 100 }, { signal }) : null,
    [],
  )
  const [creating, create] = useState(false)
  const [secret, setSecret] = useState<string | null>(null)
  const [revoked, askToRevoke] = useState<ApiKeyObject | null>(null)
  const columns: Column<ApiKeyObject>[] = [
    {
      title: t('keys.key'),
      main: true,
      cell: ({ id, name, project, compat }) => [
        h('strong', null, visibleText(name ?? project)),
        compat === null ? null : [' ', h(Badge, { tone: 'idle', text: compat })],
        h('div', { class: 'muted small mono' }, id),
      ],
    },
    { title: t('keys.project'), cell: ({ project }) => visibleText(project) },
    { title: t('keys.scopes'), cell: ({ scopes }) => h('span', { class: 'small muted' }, scopes.join(', ')) },
    {
      title: t('keys.lastUsed'),
      cell: ({ last_used_at }) =>
        last_used_at === null ? t('keys.never') : h(Time, { at: last_used_at, short: true }),
    },
    {
      title: t('batch.status'),
      align: 'end',
      cell: (key) =>
        key.revoked_at !== null
          ? h(Badge, { tone: 'idle', text: t('keys.revoked') })
          : key.id === session?.api_key_id
            ? h('span', { class: 'muted' }, t('keys.yours'))
            : may('keys:write')
              ? h(
                  'button',
                  { type: 'button', class: 'link danger', onClick: () => askToRevoke(key) },
                  t('keys.revoke'),
                )
              : null,
    },
  ]
  return h(
    Page,
    {
      title: t('keys.title'),
      lead: t('keys.lead'),
      actions: may('keys:write')
        ? h(Button, { label: t('keys.new'), icon: 'plus', kind: 'primary', onClick: () => create(true) })
        : null,
    },
    [
      h(FailureNotice, { failure: keys.failure, retry: keys.reload }),
      keys.data
        ? h(Table<ApiKeyObject>, {
            label: t('keys.title'),
            columns,
            rows: keys.data.data,
            keyOf: ({ id }) => id,
            rowClass: ({ revoked_at }) => (revoked_at === null ? '' : 'faded'),
          })
        : keys.failure
          ? null
          : h(Loading, {}),
      projects.data
        ? h(Projects, { projects: projects.data.data, reload: projects.reload })
        : h(FailureNotice, { failure: projects.failure }),
      creating
        ? h(CreateKey, {
            scopes: session?.scopes ?? [],
            projects: projects.data?.data ?? [],
            onClose: () => create(false),
            onCreated: (key) => {
              create(false)
              setSecret(key)
              keys.reload()
            },
          })
        : null,
      secret === null
        ? null
        : h(SecretDialog, {
            title: t('keys.created'),
            text: t('keys.createdText'),
            secret,
            onClose: () => setSecret(null),
          }),
      revoked
        ? h(ConfirmDialog, {
            title: t('keys.revokeTitle'),
            text: t('keys.revokeText', { name: revoked.name ?? revoked.id }),
            label: t('keys.revoke'),
            onClose: () => askToRevoke(null),
            act: async () => {
              await remove(`/v1/keys/${revoked.id}`)
              keys.reload()
            },
          })
        : null,
    ],
  )
}

function CreateKey({
  scopes,
  projects,
  onClose,
  onCreated,
}: {
  scopes: readonly Scope[]
  projects: readonly ProjectObject[]
  onClose: () => void
  onCreated: (key: string) => void
}): View {
  const session = useSession()
  const [name, setName] = useState('')
  const [project, setProject] = useState(session?.project.id ?? '')
  const [strict, setStrict] = useState(false)
  const [chosen, setChosen] = useState<readonly Scope[]>(scopes.filter((scope) => !POWERS.includes(scope)))
  const action = useAction()
  const create = (): void =>
    void action.run(async () => {
      const other = project === session?.project.id ? {} : { project_id: project }
      const made = await post<{ key: string }>('/v1/keys', {
        scopes: chosen,
        ...(name.trim() === '' ? {} : { name: name.trim() }),
        ...(strict ? { compat: 'openai' } : {}),
        ...other,
      })
      onCreated(made.key)
    })
  return h(
    Dialog,
    {
      title: t('keys.new'),
      onClose,
      onSubmit: create,
      foot: [
        h(Button, { label: t('cancel'), onClick: onClose }),
        h(Button, {
          label: t('keys.create'),
          kind: 'primary',
          submit: true,
          busy: action.busy,
          disabled: chosen.length === 0,
        }),
      ],
    },
    [
      h(TextField, {
        label: t('keys.name'),
        value: name,
        onInput: setName,
        autoFocus: true,
        placeholder: 'ci',
      }),
      projects.length > 1
        ? h(SelectField, {
            label: t('keys.project'),
            value: project,
            options: projects.map(({ id, name }) => [id, name] as const),
            onInput: setProject,
          })
        : null,
      h(CheckField, { label: t('keys.strict'), checked: strict, onInput: setStrict }),
      h('fieldset', { class: 'fieldset two' }, [
        h('legend', { class: 'legend' }, t('keys.scopes')),
        ...scopes.map((scope) =>
          h(CheckField, {
            label: scope,
            checked: chosen.includes(scope),
            onInput: (checked) =>
              setChosen(scopes.filter((other) => (other === scope ? checked : chosen.includes(other)))),
          }),
        ),
      ]),
      h(FailureNotice, { failure: action.failure }),
    ],
  )
}

function Projects({ projects, reload }: { projects: readonly ProjectObject[]; reload: () => void }): View {
  const [edited, edit] = useState<ProjectObject | 'new' | null>(null)
  const columns: Column<ProjectObject>[] = [
    {
      title: t('keys.project'),
      main: true,
      cell: ({ name, id }) => [
        h('strong', null, visibleText(name)),
        h('div', { class: 'muted small mono' }, id),
      ],
    },
    { title: t('keys.plan'), cell: ({ plan }) => plan },
    {
      title: t('keys.quotas'),
      cell: ({ quotas }) =>
        h(
          'span',
          { class: 'small muted' },
          Object.entries(quotas)
            .filter(([, value]) => value !== null)
            .map(
              ([name, value]) =>
                `${name} ${new Intl.NumberFormat('en', { notation: 'compact' }).format(value ?? 0)}`,
            )
            .join(' · '),
        ),
    },
    {
      title: t('change'),
      quiet: true,
      align: 'end',
      cell: (project) =>
        h('button', { type: 'button', class: 'link', onClick: () => edit(project) }, t('change')),
    },
  ]
  return h(
    Section,
    {
      title: t('keys.projects'),
      aside: h('button', { type: 'button', class: 'link', onClick: () => edit('new') }, t('keys.newProject')),
    },
    [
      h(Table<ProjectObject>, { label: t('keys.projects'), columns, rows: projects, keyOf: ({ id }) => id }),
      edited
        ? h(ProjectDialog, {
            project: edited === 'new' ? null : edited,
            onClose: () => edit(null),
            onDone: () => {
              edit(null)
              reload()
            },
          })
        : null,
    ],
  )
}

function ProjectDialog({
  project,
  onClose,
  onDone,
}: {
  project: ProjectObject | null
  onClose: () => void
  onDone: () => void
}): View {
  const [name, setName] = useState('')
  const [plan, setPlan] = useState(project?.plan ?? 'payg')
  const action = useAction()
  const save = (): void =>
    void action.run(async () => {
      if (project) await post(`/v1/projects/${project.id}`, { plan: plan.trim() })
      else await post('/v1/projects', { name: name.trim(), plan: plan.trim() })
      onDone()
    })
  return h(
    Dialog,
    {
      title: project ? project.name : t('keys.newProject'),
      onClose,
      onSubmit: save,
      foot: [
        h(Button, { label: t('cancel'), onClick: onClose }),
        h(Button, { label: t('save'), kind: 'primary', submit: true, busy: action.busy }),
      ],
    },
    [
      project
        ? null
        : h(TextField, {
            label: t('keys.name'),
            value: name,
            onInput: setName,
            required: true,
            autoFocus: true,
          }),
      h(TextField, {
        label: t('keys.plan'),
        value: plan,
        onInput: setPlan,
        required: true,
        hint: t('keys.planHint'),
      }),
      h(FailureNotice, { failure: action.failure }),
    ],
  )
}
