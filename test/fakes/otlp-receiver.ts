// A collector for tests: real HTTP on a free port, decodes OTLP in its JSON form, and keeps the spans and the logs.
import assert from 'node:assert/strict'
import { createServer } from 'node:http'
import { text } from 'node:stream/consumers'
import { type Listening, listen } from '../support/listen.ts'

interface Value {
  stringValue?: string
  intValue?: number | string
  doubleValue?: number
  boolValue?: boolean
  arrayValue?: { values: Value[] }
}

interface KeyValue {
  key: string
  value: Value
}

interface WireSpan {
  traceId: string
  spanId: string
  parentSpanId?: string
  name: string
  kind: number
  startTimeUnixNano: string
  endTimeUnixNano: string
  attributes: KeyValue[]
  status: { code: number }
}

interface WireExport {
  resourceSpans: { resource: { attributes: KeyValue[] }; scopeSpans: { spans: WireSpan[] }[] }[]
}

interface WireLogs {
  resourceLogs: {
    resource: { attributes: KeyValue[] }
    scopeLogs: {
      logRecords: {
        eventName: string
        severityText: string
        traceId?: string
        attributes: KeyValue[]
      }[]
    }[]
  }[]
}

export interface ReceivedLog {
  event: string
  severity: string
  trace: string | null
  attributes: Record<string, unknown>
  resource: Record<string, unknown>
}

export interface ReceivedSpan {
  trace: string
  id: string
  parent: string | null
  name: string
  kind: number
  startMs: number
  endMs: number
  attributes: Record<string, unknown>
  isError: boolean
  resource: Record<string, unknown>
}

/** Its `url` is for OTEL_EXPORTER_OTLP_ENDPOINT. */
export interface OtlpReceiver extends Listening {
  spans: ReceivedSpan[]
  logs: ReceivedLog[]
  /** What arrived, as it arrived. */
  bodies: string[]
  /** The status that exports are answered with. */
  status: number
}

export async function otlpReceiver(): Promise<OtlpReceiver> {
  const server = createServer(async (request, response) => {
    assert.match(request.url ?? '', /^\/v1\/(traces|logs)$/)
    assert.equal(request.headers['content-type'], 'application/json')
    const body = await text(request)
    receiver.bodies.push(body)
    if (receiver.status === 200) {
      if (request.url === '/v1/logs') receiver.logs.push(...logsOf(JSON.parse(body)))
      else receiver.spans.push(...spansOf(JSON.parse(body)))
    }
    response.writeHead(receiver.status, { 'content-type': 'application/json' }).end('{}')
  })
  const receiver: OtlpReceiver = { ...(await listen(server)), spans: [], logs: [], bodies: [], status: 200 }
  return receiver
}

function spansOf({ resourceSpans }: WireExport): ReceivedSpan[] {
  return resourceSpans.flatMap(({ resource, scopeSpans }) =>
    scopeSpans.flatMap(({ spans }) =>
      spans.map((span) => ({
        trace: span.traceId,
        id: span.spanId,
        parent: span.parentSpanId || null,
        name: span.name,
        kind: span.kind,
        startMs: Number(span.startTimeUnixNano) / 1e6,
        endMs: Number(span.endTimeUnixNano) / 1e6,
        attributes: decodedAll(span.attributes),
        isError: span.status.code === 2,
        resource: decodedAll(resource.attributes),
      })),
    ),
  )
}

function logsOf({ resourceLogs }: WireLogs): ReceivedLog[] {
  return resourceLogs.flatMap(({ resource, scopeLogs }) =>
    scopeLogs.flatMap(({ logRecords }) =>
      logRecords.map((record) => ({
        event: record.eventName,
        severity: record.severityText,
        trace: record.traceId || null,
        attributes: decodedAll(record.attributes),
        resource: decodedAll(resource.attributes),
      })),
    ),
  )
}

function decodedAll(pairs: readonly KeyValue[]): Record<string, unknown> {
  return Object.fromEntries(pairs.map(({ key, value }) => [key, decoded(value)]))
}

function decoded(value: Value): unknown {
  if (value.arrayValue) return value.arrayValue.values.map(decoded)
  if (value.intValue !== undefined) return Number(value.intValue)
  return value.stringValue ?? value.doubleValue ?? value.boolValue
}
