// Draws inputs with their label, hint and error, which screen readers announce.
import type { ComponentChildren, VNode } from 'preact'
import { useId, useState } from 'preact/hooks'
import { type MessageKey, t } from '../i18n.ts'

type FieldProps = { label: string; hint?: ComponentChildren; error?: string | null }

type FrameProps = FieldProps & { id: string; children: ComponentChildren }

function Frame({ id, label, hint, error, children }: FrameProps): VNode {
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
  const { value, rows, type = 'text', placeholder, autoFocus, required, min, step } = props
  const input = (event: { currentTarget: HTMLInputElement | HTMLTextAreaElement }): void =>
    props.onInput(event.currentTarget.value)
  const shared = {
    ...{ id, value, placeholder, required, autoFocus, spellcheck: false, onInput: input },
    class: props.mono ? 'input mono' : 'input',
    'aria-describedby': describedBy(id, props),
    'aria-invalid': props.error ? ('true' as const) : undefined,
  }
  return (
    <Frame {...props} id={id}>
      {/* The types have one shape for each value of `type`; all of these take a text. */}
      {rows === undefined ? (
        <input
          {...shared}
          type={type as 'text'}
          min={min}
          step={step}
          autocomplete={props.autocomplete ?? 'off'}
        />
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

type CheckFieldProps = { label: string; checked: boolean; onInput: (checked: boolean) => void }

export function CheckField({ label, checked, onInput }: CheckFieldProps): VNode {
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

interface CheckListProps<T extends string> {
  label: string
  options: readonly T[]
  chosen: readonly T[]
  choose: (chosen: T[]) => void
  twoColumns?: boolean
}

/** Boxes of which any number is checked. */
export function CheckList<T extends string>({
  label,
  options,
  chosen,
  choose,
  twoColumns,
}: CheckListProps<T>): VNode {
  return (
    <fieldset class={twoColumns ? 'fieldset two' : 'fieldset'}>
      <legend class="legend">{label}</legend>
      {options.map((option) => (
        <CheckField
          label={option}
          checked={chosen.includes(option)}
          onInput={(checked) =>
            choose(options.filter((other) => (other === option ? checked : chosen.includes(other))))
          }
        />
      ))}
    </fieldset>
  )
}

/** The values of a form's fields; `bind` ties a field to its value. `changed` is called at every change. */
export function useFields<Name extends string>(
  start: Readonly<Record<Name, string>> | (() => Readonly<Record<Name, string>>),
  changed: (values: Readonly<Record<Name, string>>) => void = () => {},
): {
  values: Readonly<Record<Name, string>>
  bind: (name: Name) => { value: string; onInput: (value: string) => void }
} {
  const [values, setValues] = useState(start)
  const bind = (name: Name) => ({
    value: values[name],
    onInput: (value: string) =>
      setValues((last) => {
        const next = { ...last, [name]: value }
        changed(next)
        return next
      }),
  })
  return { values, bind }
}

/** Choices whose titles are the texts `prefix.name`. */
export function optionsOf<Prefix extends string, Name extends string>(
  prefix: Prefix & (`${Prefix}.${Name}` extends MessageKey ? unknown : never),
  names: readonly Name[],
): (readonly [Name, string])[] {
  return names.map((name) => [name, t(`${prefix}.${name}` as MessageKey)] as const)
}
