// Labelled inputs. Each has its hint and its error where a reader of either kind finds them.

import type { ComponentChildren, VNode } from 'preact'
import { useId } from 'preact/hooks'
import { t } from '../i18n.ts'
import { replaceQuery } from '../router.ts'

interface FieldProps {
  label: string
  hint?: ComponentChildren
  error?: string | null
}

function Frame({
  id,
  label,
  hint,
  error,
  children,
}: FieldProps & { id: string; children: ComponentChildren }): VNode {
  return (
    <div class="field">
      <label for={id}>{label}</label>
      {children}
      {hint ? (
        <div class="hint" id={`${id}-hint`}>
          {hint}
        </div>
      ) : null}
      {error ? (
        <div class="field-error" id={`${id}-error`} role="alert">
          {error}
        </div>
      ) : null}
    </div>
  )
}

const describedBy = (id: string, { hint, error }: FieldProps): string | undefined =>
  [hint ? `${id}-hint` : '', error ? `${id}-error` : ''].filter(Boolean).join(' ') || undefined

interface TextFieldProps extends FieldProps {
  value: string
  onInput: (value: string) => void
  type?: 'text' | 'password' | 'search' | 'number' | 'url' | 'date' | 'datetime-local'
  placeholder?: string
  autoFocus?: boolean
  required?: boolean
  mono?: boolean
  rows?: number
  min?: number
  step?: string
  autocomplete?: 'off' | 'current-password'
}

export function TextField(props: TextFieldProps): VNode {
  const id = useId()
  const {
    value,
    onInput,
    rows,
    type = 'text',
    placeholder,
    autoFocus,
    required,
    mono,
    min,
    step,
    autocomplete = 'off',
  } = props
  const input = (event: { currentTarget: HTMLInputElement | HTMLTextAreaElement }): void =>
    onInput(event.currentTarget.value)
  const shared = {
    id,
    value,
    placeholder,
    required,
    autoFocus,
    class: mono ? 'input mono' : 'input',
    spellcheck: false,
    'aria-describedby': describedBy(id, props),
    'aria-invalid': props.error ? ('true' as const) : undefined,
    onInput: input,
  }
  return (
    <Frame {...props} id={id}>
      {/* The types have one shape for each value of `type`; all of these take a text. */}
      {rows === undefined ? (
        <input {...shared} type={type as 'text'} min={min} step={step} autocomplete={autocomplete} />
      ) : (
        <textarea {...shared} rows={rows} />
      )}
    </Frame>
  )
}

interface SelectFieldProps extends FieldProps {
  value: string
  options: readonly (readonly [value: string, title: string])[]
  onInput: (value: string) => void
}

export function SelectField(props: SelectFieldProps): VNode {
  const id = useId()
  return (
    <Frame {...props} id={id}>
      <select
        id={id}
        class="input"
        value={props.value}
        aria-describedby={describedBy(id, props)}
        onInput={(event) => props.onInput(event.currentTarget.value)}
      >
        {props.options.map(([value, title]) => (
          <option value={value} selected={value === props.value}>
            {title}
          </option>
        ))}
      </select>
    </Frame>
  )
}

/** A filter that another page, or a click, has set: it is removed by a click. */
export function FilterChip({ name, title, value }: { name: string; title: string; value: string }): VNode {
  return (
    <button
      type="button"
      class="chip"
      title={t('lines.removeFilter')}
      onClick={() => replaceQuery({ [name]: null })}
    >
      <span class="muted">{title}</span>
      <span class="clip">{value}</span>
      <span aria-hidden="true">×</span>
    </button>
  )
}

export function CheckField({
  label,
  checked,
  onInput,
}: {
  label: string
  checked: boolean
  onInput: (checked: boolean) => void
}): VNode {
  const id = useId()
  return (
    <div class="check">
      <input
        id={id}
        type="checkbox"
        checked={checked}
        onInput={(event) => onInput(event.currentTarget.checked)}
      />
      <label for={id}>{label}</label>
    </div>
  )
}
