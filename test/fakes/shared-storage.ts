// PostgreSQL and a bucket for services under test: one server of each, a database and a prefix for each service.
import { randomBytes } from 'node:crypto'
import type { Storage } from '../service.ts'
import { type PostgresServer, type PostgresServerOptions, postgresServer } from './postgres-server.ts'
import { type S3Server, s3Server, TEST_BUCKET } from './s3-server.ts'

const MASTER_KEY = randomBytes(32).toString('base64')

export interface SharedStorage extends AsyncDisposable {
  postgres: PostgresServer
  s3: S3Server
  /** A database without rows, or without tables if it is `empty`, and an empty prefix. */
  make(content?: 'empty'): Promise<Storage>
}

export async function sharedStorage(options: PostgresServerOptions = {}): Promise<SharedStorage> {
  const postgres = await postgresServer(options)
  const s3 = await s3Server()
  let made = 0
  return {
    postgres,
    s3,
    async make(content) {
      const database = await postgres.database(content)
      const endpoint = encodeURIComponent(s3.endpoint)
      const blobs = `s3://${TEST_BUCKET}/service-${++made}?endpoint=${endpoint}`
      return {
        yaml: `database: "${database}"\nblobs: "${blobs}"`,
        env: { OFFPEAK_MASTER_KEY: MASTER_KEY, AWS_ACCESS_KEY_ID: 'test', AWS_SECRET_ACCESS_KEY: 'test' },
      }
    },
    async [Symbol.asyncDispose]() {
      await postgres[Symbol.asyncDispose]()
      await s3[Symbol.asyncDispose]()
    },
  }
}
