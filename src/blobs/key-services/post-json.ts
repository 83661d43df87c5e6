// Calls of the services that answer in JSON over HTTP.
import { CALL_MS_MAX } from '../key-service.ts'

/** Of messages of a service, so much is shown. */
const SAID_CHARACTERS = 200

/** Posts JSON and returns the answer as JSON. Throws with what the service said. */
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

/** The member of an answer. */
export function textAt(answer: object, name: string): string {
  const text: unknown = Reflect.get(answer, name)
  if (typeof text !== 'string') throw new Error(`its answer has no ${name}`)
  return text
}
