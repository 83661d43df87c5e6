// The JSON body of a request. An empty one is no body, since clients send the content type all the same; the
// endpoint's shape says whether it can do without.
import type { FastifyBodyParser } from 'fastify'
import { Refusal } from '../domain/errors.ts'

export const parseJson: FastifyBodyParser<string> = (_request, text, done) => {
  if (text.trim() === '') return done(null, undefined)
  let body: unknown
  try {
    body = JSON.parse(text)
  } catch (error) {
    const reason = error instanceof Error ? error.message : ''
    return done(new Refusal('invalid_json', `The request body is not valid JSON: ${reason}.`))
  }
  done(null, body)
}
