// The page of keys lists API keys, and the projects and plans that they belong to.
import type { VNode } from 'preact'
import { useMemo, useState } from 'preact/hooks'
import type { Scope } from '../../domain/api-key.ts'
import type { ApiKeyObject, ProjectObject } from '../../wire/project.ts'
import { post } from '../api.ts'
import { quotaText } from '../format.ts'
import { t } from '../i18n.ts'
import { Button, TextButton } from '../parts/button.tsx'
import { askToRemove, FormDialog, openDialog, SecretDialog } from '../parts/dialog.tsx'
import { CheckField, CheckList, SelectField, TextField, useFields } from '../parts/field.tsx'
import { PagedTable } from '../parts/long-table.tsx'
import { Loaded } from '../parts/notice.tsx'
import { Page, Section, Time } from '../parts/page.tsx'
import { Badge } from '../parts/status.tsx'
import { type Column, Table } from '../parts/table.tsx'
import { useAll, usePages } from '../resource.ts'
import { may, useSession } from '../session.ts'

/** Scopes that are not preselected: a key with them controls others. */
const POWERS: readonly Scope[] = ['operator', 'keys:write']

export function Keys(): VNode {
  const session = useSession()
  const keys = usePages<ApiKeyObject>('/v1/keys', {})
  const projects = useAll<ProjectObject>(may('operator') ? '/v1/projects' : null)
  const reload = (): void => keys.refresh()
  const create = (): void => openDialog(<CreateKey projects={projects.data ?? []} reload={reload} />)
  const columns = useMemo(() => columnsOf(session?.api_key_id, reload), [keys])
  return (
    <Page
      title={t('keys.title')}
      lead={t('keys.lead')}
      actions={
        may('keys:write') ? <Button label={t('keys.new')} icon="new" kind="primary" onClick={create} /> : null
      }
    >
      <PagedTable<ApiKeyObject>
        pages={keys}
        label={t('keys.title')}
        columns={columns}
        rowClass={({ revoked_at }) => (revoked_at === null ? '' : 'faded')}
        cards
      />
      {may('operator') ? (
        <Loaded resource={projects}>{(list) => <Projects projects={list} reload={projects.reload} />}</Loaded>
      ) : null}
    </Page>
  )
}

function columnsOf(own: string | undefined, reload: () => void): Column<ApiKeyObject>[] {
  return [
    {
      title: t('audit.key'),
      main: true,
      grow: 3.2,
      cell: ({ id, name, project, compat }) => [
        <div class="clip" title={name ?? project}>
          <strong>{name ?? project}</strong>
          {compat === null ? null : [' ', <Badge tone="idle" text={compat} />]}
        </div>,
        <div class="muted small mono">{id}</div>,
      ],
    },
    {
      title: t('limits.project'),
      minor: true,
      cell: ({ project }) => (
        <div class="clip" title={project}>
          {project}
        </div>
      ),
    },
    {
      title: t('keys.scopes'),
      minor: true,
      grow: 2.5,
      cell: ({ scopes }) => (
        <div class="small muted two-lines" title={scopes.join(', ')}>
          {scopes.join(', ')}
        </div>
      ),
    },
    {
      title: t('keys.lastUsed'),
      cell: ({ last_used_at }) =>
        last_used_at === null ? t('keys.never') : <Time at={last_used_at} short />,
    },
    {
      title: t('batch.status'),
      align: 'end',
      cell: (key) =>
        key.revoked_at !== null ? (
          <Badge tone="idle" text={t('keys.revoked')} />
        ) : key.id === own ? (
          <span class="muted">{t('keys.yours')}</span>
        ) : may('keys:write') ? (
          <TextButton label={t('keys.revoke')} kind="danger" onClick={() => revoke(key, reload)} />
        ) : null,
    },
  ]
}

function revoke({ id, name }: ApiKeyObject, reload: () => void): void {
  const text = t('keys.revokeText', { name: name ?? id })
  askToRemove(`/v1/keys/${id}`, { title: t('keys.revokeTitle'), label: t('keys.revoke'), text }, reload)
}

function CreateKey({ projects, reload }: { projects: readonly ProjectObject[]; reload: () => void }): VNode {
  const session = useSession()
  const { values, bind } = useFields({ name: '', project: session?.project.id ?? '' })
  const scopes = session?.scopes ?? []
  const [strict, setStrict] = useState(false)
  const [chosen, setChosen] = useState<readonly Scope[]>(scopes.filter((scope) => !POWERS.includes(scope)))
  const create = async (): Promise<VNode> => {
    const name = values.name.trim()
    const made = await post<{ key: string }>('/v1/keys', {
      scopes: chosen,
      ...(name === '' ? {} : { name }),
      ...(strict ? { compat: 'openai' } : {}),
      ...(values.project === session?.project.id ? {} : { project_id: values.project }),
    })
    reload()
    return <SecretDialog title={t('usage.by.key')} text={t('keys.createdText')} secret={made.key} />
  }
  return (
    <FormDialog title={t('keys.new')} label={t('keys.create')} disabled={chosen.length === 0} act={create}>
      <TextField label={t('new.name')} {...bind('name')} autoFocus placeholder="ci" />
      {projects.length > 1 ? (
        <SelectField
          label={t('limits.project')}
          {...bind('project')}
          options={projects.map(({ id, name }) => [id, name] as const)}
        />
      ) : null}
      <CheckField label={t('keys.strict')} checked={strict} onInput={setStrict} />
      <CheckList label={t('keys.scopes')} options={scopes} chosen={chosen} choose={setChosen} twoColumns />
    </FormDialog>
  )
}

function Projects({ projects, reload }: { projects: readonly ProjectObject[]; reload: () => void }): VNode {
  const edit = (project: ProjectObject | null): void =>
    openDialog(<ProjectDialog project={project} reload={reload} />)
  const columns: Column<ProjectObject>[] = [
    {
      title: t('limits.project'),
      main: true,
      cell: ({ name, id }) => [<strong>{name}</strong>, <div class="muted small mono">{id}</div>],
    },
    { title: t('keys.plan'), cell: ({ plan }) => plan },
    {
      title: t('keys.quotas'),
      minor: true,
      cell: ({ quotas }) => (
        <span class="small muted">
          {Object.entries(quotas)
            .filter(([, value]) => value !== null)
            .map(([name, value]) => `${name} ${quotaText(name, value)}`)
            .join(' · ')}
        </span>
      ),
    },
    {
      title: t('change'),
      quiet: true,
      align: 'end',
      cell: (project) => <TextButton label={t('change')} onClick={() => edit(project)} />,
    },
  ]
  return (
    <Section
      title={t('keys.projects')}
      aside={<TextButton label={t('keys.newProject')} onClick={() => edit(null)} />}
    >
      <Table label={t('keys.projects')} columns={columns} rows={projects} />
    </Section>
  )
}

function ProjectDialog({ project, reload }: { project: ProjectObject | null; reload: () => void }): VNode {
  const { values, bind } = useFields({ name: '', plan: project?.plan ?? 'payg' })
  const save = async (): Promise<void> => {
    const plan = values.plan.trim()
    if (project) await post(`/v1/projects/${project.id}`, { plan })
    else await post('/v1/projects', { name: values.name.trim(), plan })
    reload()
  }
  return (
    <FormDialog title={project ? project.name : t('keys.newProject')} label={t('save')} act={save}>
      {project ? null : <TextField label={t('new.name')} {...bind('name')} required autoFocus />}
      <TextField label={t('keys.plan')} {...bind('plan')} required hint={t('keys.planHint')} />
    </FormDialog>
  )
}
