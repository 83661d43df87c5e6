// API keys, and the projects and plans that they belong to.

import type { VNode } from 'preact'
import { useState } from 'preact/hooks'
import type { Scope } from '../../domain/api-key.ts'
import type { List } from '../../wire/list.ts'
import type { ApiKeyObject, ProjectObject } from '../../wire/project.ts'
import { post, remove } from '../api.ts'
import { quotaText } from '../format.ts'
import { t } from '../i18n.ts'
import { Button } from '../parts/button.tsx'
import { FormDialog, SecretDialog } from '../parts/dialog.tsx'
import { CheckField, SelectField, TextField } from '../parts/field.tsx'
import { Loaded } from '../parts/loaded.tsx'
import { Page, Section } from '../parts/page.tsx'
import { Badge } from '../parts/status.tsx'
import { type Column, Table } from '../parts/table.tsx'
import { Time } from '../parts/time.tsx'
import { useGet } from '../resource.ts'
import { may, useSession } from '../session.ts'

/** Kept back unless asked for: with them a key rules over others. */
const POWERS: readonly Scope[] = ['operator', 'keys:write']

export function Keys(): VNode {
  const session = useSession()
  const keys = useGet<List<ApiKeyObject>>('/v1/keys', { limit: 100 })
  const projects = useGet<List<ProjectObject>>(may('operator') ? '/v1/projects' : null, { limit: 100 })
  const [creating, create] = useState(false)
  const [secret, setSecret] = useState<string | null>(null)
  const [revoked, askToRevoke] = useState<ApiKeyObject | null>(null)
  const columns: Column<ApiKeyObject>[] = [
    {
      title: t('keys.key'),
      main: true,
      cell: ({ id, name, project, compat }) => [
        <strong>{name ?? project}</strong>,
        compat === null ? null : [' ', <Badge tone="idle" text={compat} />],
        <div class="muted small mono">{id}</div>,
      ],
    },
    { title: t('keys.project'), minor: true, cell: ({ project }) => project },
    {
      title: t('keys.scopes'),
      minor: true,
      cell: ({ scopes }) => <span class="small muted">{scopes.join(', ')}</span>,
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
        ) : key.id === session?.api_key_id ? (
          <span class="muted">{t('keys.yours')}</span>
        ) : may('keys:write') ? (
          <button type="button" class="link danger" onClick={() => askToRevoke(key)}>
            {t('keys.revoke')}
          </button>
        ) : null,
    },
  ]
  return (
    <Page
      title={t('keys.title')}
      lead={t('keys.lead')}
      actions={
        may('keys:write') ? (
          <Button label={t('keys.new')} icon="new" kind="primary" onClick={() => create(true)} />
        ) : null
      }
    >
      <Loaded resource={keys}>
        {({ data }) => (
          <Table<ApiKeyObject>
            label={t('keys.title')}
            columns={columns}
            rows={data}
            keyOf={({ id }) => id}
            rowClass={({ revoked_at }) => (revoked_at === null ? '' : 'faded')}
          />
        )}
      </Loaded>
      {may('operator') ? (
        <Loaded resource={projects}>
          {(list) => (list ? <Projects projects={list.data} reload={projects.reload} /> : null)}
        </Loaded>
      ) : null}
      {creating ? (
        <CreateKey
          scopes={session?.scopes ?? []}
          projects={projects.data?.data ?? []}
          onClose={() => create(false)}
          onCreated={(key) => {
            setSecret(key)
            keys.reload()
          }}
        />
      ) : null}
      {secret === null ? null : (
        <SecretDialog
          title={t('keys.created')}
          text={t('keys.createdText')}
          secret={secret}
          onClose={() => setSecret(null)}
        />
      )}
      {revoked ? (
        <FormDialog
          danger
          title={t('keys.revokeTitle')}
          label={t('keys.revoke')}
          onClose={() => askToRevoke(null)}
          act={async () => {
            await remove(`/v1/keys/${revoked.id}`)
            keys.reload()
          }}
        >
          <p>{t('keys.revokeText', { name: revoked.name ?? revoked.id })}</p>
        </FormDialog>
      ) : null}
    </Page>
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
}): VNode {
  const session = useSession()
  const [name, setName] = useState('')
  const [project, setProject] = useState(session?.project.id ?? '')
  const [strict, setStrict] = useState(false)
  const [chosen, setChosen] = useState<readonly Scope[]>(scopes.filter((scope) => !POWERS.includes(scope)))
  const create = async (): Promise<void> => {
    const other = project === session?.project.id ? {} : { project_id: project }
    const made = await post<{ key: string }>('/v1/keys', {
      scopes: chosen,
      ...(name.trim() === '' ? {} : { name: name.trim() }),
      ...(strict ? { compat: 'openai' } : {}),
      ...other,
    })
    onCreated(made.key)
  }
  return (
    <FormDialog
      title={t('keys.new')}
      label={t('keys.create')}
      disabled={chosen.length === 0}
      onClose={onClose}
      act={create}
    >
      <TextField label={t('keys.name')} value={name} onInput={setName} autoFocus placeholder="ci" />
      {projects.length > 1 ? (
        <SelectField
          label={t('keys.project')}
          value={project}
          options={projects.map(({ id, name }) => [id, name] as const)}
          onInput={setProject}
        />
      ) : null}
      <CheckField label={t('keys.strict')} checked={strict} onInput={setStrict} />
      <fieldset class="fieldset two">
        <legend class="legend">{t('keys.scopes')}</legend>
        {scopes.map((scope) => (
          <CheckField
            label={scope}
            checked={chosen.includes(scope)}
            onInput={(checked) =>
              setChosen(scopes.filter((other) => (other === scope ? checked : chosen.includes(other))))
            }
          />
        ))}
      </fieldset>
    </FormDialog>
  )
}

function Projects({ projects, reload }: { projects: readonly ProjectObject[]; reload: () => void }): VNode {
  const [edited, edit] = useState<ProjectObject | 'new' | null>(null)
  const columns: Column<ProjectObject>[] = [
    {
      title: t('keys.project'),
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
      cell: (project) => (
        <button type="button" class="link" onClick={() => edit(project)}>
          {t('change')}
        </button>
      ),
    },
  ]
  return (
    <Section
      title={t('keys.projects')}
      aside={
        <button type="button" class="link" onClick={() => edit('new')}>
          {t('keys.newProject')}
        </button>
      }
    >
      <Table<ProjectObject>
        label={t('keys.projects')}
        columns={columns}
        rows={projects}
        keyOf={({ id }) => id}
      />
      {edited ? (
        <ProjectDialog
          project={edited === 'new' ? null : edited}
          onClose={() => edit(null)}
          reload={reload}
        />
      ) : null}
    </Section>
  )
}

function ProjectDialog({
  project,
  onClose,
  reload,
}: {
  project: ProjectObject | null
  onClose: () => void
  reload: () => void
}): VNode {
  const [name, setName] = useState('')
  const [plan, setPlan] = useState(project?.plan ?? 'payg')
  const save = async (): Promise<void> => {
    if (project) await post(`/v1/projects/${project.id}`, { plan: plan.trim() })
    else await post('/v1/projects', { name: name.trim(), plan: plan.trim() })
    reload()
  }
  return (
    <FormDialog
      title={project ? project.name : t('keys.newProject')}
      label={t('save')}
      onClose={onClose}
      act={save}
    >
      {project ? null : (
        <TextField label={t('keys.name')} value={name} onInput={setName} required autoFocus />
      )}
      <TextField label={t('keys.plan')} value={plan} onInput={setPlan} required hint={t('keys.planHint')} />
    </FormDialog>
  )
}
