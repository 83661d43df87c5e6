// Connections to webhooks. If private networks are not allowed, the address is checked when the connection is made,
// after the name was resolved, so a name whose address changes cannot reach a private network.
import { lookup as systemLookup } from 'node:dns'
import { isIP, type LookupFunction } from 'node:net'
import type { Agent } from 'undici'
import { isPublicAddress } from './public-address.ts'

const CONNECT_TIMEOUT_MS = 10_000

/** It does not tell the address: whoever chooses a URL is not to learn what internal names resolve to. */
export class AddressNotAllowed extends Error {
  constructor() {
    super('its host leads to no address of the public internet (see webhooks.allow_private_networks)')
    this.name = 'AddressNotAllowed'
  }
}

export interface AgentOptions {
  allow_private_networks: boolean
  /** How names are resolved; as `dns.lookup`. */
  lookup?: LookupFunction
}

/** A process that delivers nothing does not load the client, which takes 20 MiB. */
export async function webhookAgent({
  allow_private_networks,
  lookup = systemLookup,
}: AgentOptions): Promise<Agent> {
  const { Agent, buildConnector } = await import('undici')
  if (allow_private_networks) return new Agent({ connect: { timeout: CONNECT_TIMEOUT_MS, lookup } })
  const connect = buildConnector({ timeout: CONNECT_TIMEOUT_MS, lookup: guarded(lookup) })
  return new Agent({
    connect(options, done) {
      // An address in the URL is connected to without being looked up.
      const literal = options.hostname.replace(/^\[|\]$/g, '')
      if (isIP(literal) !== 0 && !isPublicAddress(literal)) done(new AddressNotAllowed(), null)
      else connect(options, done)
    },
  })
}

/** Refuses a name of which any address is not public. */
function guarded(lookup: LookupFunction): LookupFunction {
  return (hostname, options, done) => {
    lookup(hostname, { ...options, all: true }, (error, found) => {
      if (error) return done(error, [])
      const addresses = typeof found === 'string' ? [{ address: found, family: isIP(found) }] : found
      const [first] = addresses
      if (addresses.some(({ address }) => !isPublicAddress(address))) done(new AddressNotAllowed(), [])
      else if (options.all) done(null, addresses)
      else done(null, first?.address ?? '', first?.family)
    })
  }
}
