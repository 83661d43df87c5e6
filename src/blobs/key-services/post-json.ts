// HTTP calls to services that answer in JSON.
import { CALL_MS_MAX } from '../key-service.ts'

/** The most characters of a service's error that are quoted. */
const SAID_CHARACTERS = 200

/** Posts JSON and returns the answer as JSON. Throws with the service's message. */
export async function postJson(url: string, headers: Record<string, string>, body: string): Promise<object> {
  const signal = AbortSignal.timeout(CALL_MS_MAX)
  const answer = await fetch(url, { method: 'POST', headers, body, signal, redirect: 'error' }).catch(
    (error) => {
      throw new Error(`${new URL(url).host}: ${error.cause?.message || error.cause?.code || error.message}`)
    },
  )
  const text = await answer.text()
  if (!answer.ok) throw new Error(`${answer.status} ${text.slice(0, SAID_CHARACTERS)}`)
  return Object(JSON.parse(text))
}

/** The text of a field in an answer. Throws where it is missing. */
export function textAt(answer: object, name: string): string {
  const text: unknown = Reflect.get(answer, name)
  if (typeof text !== 'string') throw new Error(`its answer has no ${name}`)
  return text
}
