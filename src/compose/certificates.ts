// The certificates that an upstream's configuration names, as the connections to it want them.
import { readFileSync } from 'node:fs'
import type { OpenAiUpstream } from '../config/config.ts'

type CertificateFiles = Pick<OpenAiUpstream, 'ca_file' | 'client_cert_file' | 'client_key_file'>

export function certificatesOf({ ca_file, client_cert_file, client_key_file }: CertificateFiles): {
  ca?: Buffer
  cert?: Buffer
  key?: Buffer
} {
  return {
    ...(ca_file === null ? {} : { ca: readFileSync(ca_file) }),
    ...(client_cert_file === null ? {} : { cert: readFileSync(client_cert_file) }),
    ...(client_key_file === null ? {} : { key: readFileSync(client_key_file) }),
  }
}
