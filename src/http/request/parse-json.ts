// Parses the JSON body of a request. An empty body counts as no body, because clients send the content type all the
// same; the endpoint's shape says whether a body is required. An endpoint may ask for the bytes instead.
import type { FastifyBodyParser } from 'fastify'
import { ApiError } from '../../domain/errors.ts'
import { compressionOf } from '../../domain/file.ts'

const utf8 = new TextDecoder('utf-8', { fatal: true })

export const parseJson: FastifyBodyParser<Buffer> = (request, bytes, done) => {
  if (request.routeOptions.config.declared?.raw) return done(null, bytes)
  try {
    done(null, read(bytes))
  } catch (error) {
    done(error instanceof Error ? error : new Error(String(error)))
  }
}

function read(bytes: Buffer): unknown {
  const compression = compressionOf(bytes)
  if (compression !== null)
    throw new ApiError('unsupported_media_type', `The body is compressed (${compression}). Send it as it is.`)
  let text: string
  try {
    text = utf8.decode(bytes)
  } catch {
    throw new ApiError('invalid_json', 'The request body is not valid UTF-8.')
  }
  if (text.trim() === '') return undefined
  try {
    return JSON.parse(text)
  } catch (error) {
    const reason = error instanceof Error ? error.message : ''
    throw new ApiError('invalid_json', `The request body is not valid JSON: ${reason}.`)
  }
}
