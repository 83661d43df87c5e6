// Labelled inputs. Each has its hint and its error where a reader of either kind finds them.
import { useId } from 'preact/hooks'
import { type ComponentChildren, h, type View } from '../h.ts'

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
}: FieldProps & { id: string; children: ComponentChildren }): View {
  return h('div', { class: 'field' }, [
    h('label', { for: id }, label),
    children,
    hint ? h('div', { class: 'hint', id: `${id}-hint` }, hint) : null,
    error ? h('div', { class: 'field-error', id: `${id}-error`, role: 'alert' }, error) : null,
  ])
}

const describedBy = (id: string, { hint, error }: FieldProps): string | undefined =>
  [hint ? `${id}-hint` : '', error ? `${id}-error` : ''].filter(Boolean).join(' ') || undefined

interface TextFieldProps extends FieldProps {
  value: string
  onInput: (value: string) => void
  type?: 'text' | 'password' | 'search' | 'number' | 'url' | 'date'
  placeholder?: string
  autoFocus?: boolean
  required?: boolean
  mono?: boolean
  rows?: number
  min?: number
  step?: string
  autocomplete?: 'off' | 'current-password'
}

export function TextField(props: TextFieldProps): View {
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
  return h(
    Frame,
    { ...props, id },
    rows === undefined
      ? // The types have one shape for each value of `type`; all of these take a text.
        h('input', { ...shared, type: type as 'text', min, step, autocomplete })
      : h('textarea', { ...shared, rows }),
  )
}

interface SelectFieldProps extends FieldProps {
  value: string
  options: readonly (readonly [value: string, title: string])[]
  onInput: (value: string) => void
}

export function SelectField(props: SelectFieldProps): View {
  const id = useId()
  return h(
    Frame,
    { ...props, id },
    h(
      'select',
      {
        id,
        class: 'input',
        value: props.value,
        'aria-describedby': describedBy(id, props),
        onInput: (event) => props.onInput(event.currentTarget.value),
      },
      props.options.map(([value, title]) => h('option', { value, selected: value === props.value }, title)),
    ),
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
}): View {
  const id = useId()
  return h('div', { class: 'check' }, [
    h('input', { id, type: 'checkbox', checked, onInput: (event) => onInput(event.currentTarget.checked) }),
    h('label', { for: id }, label),
  ])
}
